"""Loads a model onto workers as the engine does, and looks at what came of it."""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from app.engine.config import EngineConfig
from app.engine.load_progress import LoadProgress
from app.engine.loader import load_model
from app.ggml.types import GGMLType
from tests.helpers.assets import asset
from tests.helpers.tiny_gguf import TinyConfig, write_tiny


@dataclass(frozen=True)
class Loaded:
    """How a load went: its last report, the seconds that the weights took, the bytes that went out
    to each worker in all, and whether every weight is on its device as it is in the file.
    """

    progress: LoadProgress
    seconds: float
    bytes_sent: tuple[int, ...]
    is_right: bool


def load(
    path: Path,
    rpc: Sequence[str],
    *,
    hash_folder: Path | None = None,
    tensor_split: tuple[float, ...] = (),
    check: bool = True,
) -> Loaded:
    """Load a model, all layers on the workers, and let go of it."""
    config = EngineConfig(
        path,
        rpc_endpoints=tuple(rpc),
        n_gpu_layers=99,
        tensor_split=tensor_split,
        n_ctx=64,
        n_parallel=1,
        hash_folder=hash_folder,
    )
    reports: list[tuple[float, LoadProgress]] = []
    with closing(
        load_model(config, lambda p: reports.append((time.monotonic(), p)), lambda text: None)
    ) as model:
        ended = time.monotonic()
        sent = tuple(worker.bytes_sent for worker in model.pool.worker_stats())
        is_right = check and all(
            stage.device.get_tensor(tensor, 0, tensor.nbytes).result(60)
            == model.gguf.data(name if name in model.gguf.tensors else "token_embd.weight")
            for stage in model.runner._stages
            for name, tensor in stage.weights.items()
        )
    return Loaded(reports[-1][1], ended - reports[0][0], sent, is_right)


def write_model(path: Path, n_layer: int = 2, seed: int = 0, n_embd: int = 256) -> Path:
    """Write a model whose layers have 2 MB each (at 256), nearly all of it worth a hash."""
    config = TinyConfig(
        "llama",
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=4,
        n_head_kv=4,
        n_ff=4 * n_embd,
        types={"*": GGMLType.F16},
        seed=seed,
    )
    return write_tiny(path, asset("stories260k"), config)
