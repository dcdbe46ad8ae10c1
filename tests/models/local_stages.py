"""Runs a model file through `build_stage` on one device (the local reference device unless told),
cut into stages as a test likes: the smallest thing that does what the engine does.

One sequence, token i in cache cell i; masks are made here, from the definition in `HParams`.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from app.devices.base import BufferUsage, Device
from app.devices.registry import open_devices
from app.engine.buffers import alloc_tensors
from app.ggml.gguf_file import GGUFFile
from app.ggml.planner import assign, plan_memory
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import TRAITS, GGMLType
from app.models.inputs import CacheInputs, StageInputs, StageShape
from app.models.registry import get_architecture
from app.models.stage import StageGraph, build_stage
from app.models.tensors import check_tensors, output_weight_name

KV_PADDING = 32

Floats = npt.NDArray[np.float32]


class LocalModel:
    """A model on a device, which it closes; a context manager."""

    def __init__(
        self,
        path: Path,
        *,
        n_cells: int,
        type_kv: GGMLType = GGMLType.F32,
        device: Device | None = None,
    ) -> None:
        torch.set_num_threads(1)
        self.gguf = GGUFFile.open(path)
        self.arch = get_architecture(self.gguf.architecture)
        self.hparams = self.arch.hparams(self.gguf.metadata)
        check_tensors(self.gguf, self.arch.tensors(self.hparams))
        self.device = device or open_devices(["CPU"], 1, executor="reference")[0]
        self.weights = self._load()
        sizes = (self.hparams.n_embd_k_gqa, self.hparams.n_embd_v_gqa)
        layers = range(self.hparams.n_layer)
        self.k, self.v = (
            {il: new_tensor(type_kv, [n(il), n_cells], f"cache-{il}") for il in layers}
            for n in sizes
        )
        self._alloc([*self.k.values(), *self.v.values()])

    def _load(self) -> dict[str, Tensor]:
        names = {name: name for name in self.gguf.tensors if name != "token_embd.weight"}
        names["output.weight"] = output_weight_name(self.gguf)
        weights = {}
        for name, in_file in names.items():
            info = self.gguf.tensors[in_file]
            weights[name] = new_tensor(info.type, info.ne, name)
        alloc_tensors(self.device, list(weights.values()), BufferUsage.WEIGHTS)
        for name, in_file in names.items():
            if TRAITS[weights[name].type].is_quantized:
                self.device.init_tensor(weights[name])
            self.device.set_tensor(weights[name], self.gguf.data(in_file))
        return weights

    def _alloc(self, tensors: Sequence[Tensor]) -> None:
        for buffer in alloc_tensors(self.device, tensors, BufferUsage.ANY):
            self.device.clear(buffer, 0)

    def embeddings(self, tokens: Sequence[int]) -> Floats:
        """Rows of the token embedding (n_tokens, n_embd)."""
        info = self.gguf.tensors["token_embd.weight"]
        raw = np.frombuffer(self.gguf.data(info.name), np.uint8).reshape(info.ne[1], -1)
        rows = raw[list(tokens)]
        if info.type == GGMLType.F32:
            return rows.view(np.float32)
        return np.asarray(dequantize(rows, GGMLQuantizationType(info.type)), np.float32)

    def run(
        self,
        tokens: Sequence[int],
        *,
        n_past: int = 0,
        n_outputs: int | None = None,
        cuts: Sequence[int] = (),
        flash_attn: bool = True,
    ) -> Floats | None:
        """Run one micro-batch through stages that begin at the layers in `cuts`; a cut behind the
        last layer puts the output matrix on a stage of its own.

        Logits (n_outputs, n_vocab) of the last tokens, of all when not told; None for none.
        """
        n, n_layer = len(tokens), self.hparams.n_layer
        n_kv = -(-(n_past + n) // KV_PADDING) * KV_PADDING
        shape = StageShape(n, n_kv, n_kv, n if n_outputs is None else n_outputs)
        borders = [0, *cuts, n_layer]
        x: Floats | None = self.embeddings(tokens)
        for first, end in pairwise(borders):
            is_last = end == n_layer and (n_layer not in cuts or first == n_layer)
            staged = build_stage(
                self.arch,
                self.hparams,
                self.weights,
                self.k,
                self.v,
                shape,
                layers=range(first, end),
                is_first=first == 0,
                has_output=is_last,
                flash_attn=flash_attn,
            )
            if staged.graph.nodes:
                x = self._compute(staged, x, n_past, shape)
        return x

    def _compute(
        self, staged: StageGraph, x: Floats | None, n_past: int, shape: StageShape
    ) -> Floats | None:
        assert x is not None, "a stage that has nodes has an input"
        plan = plan_memory(staged.graph, alignment=self.device.alignment())
        buffer = self.device.alloc(plan.size, BufferUsage.COMPUTE)
        # What a run leaves unwritten must not look like a result.
        self.device.clear(buffer, 0xFF)
        assign(plan, staged.graph, buffer)
        self._set_inputs(staged.inputs, x, n_past, shape)
        self.device.compute(staged.graph)
        result = None
        if staged.result is not None:
            data = self.device.get_tensor(staged.result, 0, staged.result.nbytes).result()
            result = np.frombuffer(data, np.float32).reshape(staged.result.ne[1], -1)
        self.device.free(buffer)
        return result

    def _set_inputs(self, inputs: StageInputs, x: Floats, n_past: int, shape: StageShape) -> None:
        device, n = self.device, shape.n_tokens
        device.set_tensor(inputs.x, x.tobytes())
        positions = np.arange(n_past, n_past + n)
        if inputs.positions is not None:
            device.set_tensor(inputs.positions, positions.astype(np.int32).tobytes())
        if inputs.output_rows is not None:
            rows = np.arange(n - shape.n_outputs, n, dtype=np.int32)
            device.set_tensor(inputs.output_rows, rows.tobytes())
        self._set_cache(inputs.full, positions, None)
        self._set_cache(inputs.window, positions, self.hparams.n_swa)

    def _set_cache(
        self, cache: CacheInputs | None, positions: npt.NDArray[np.int64], n_swa: int | None
    ) -> None:
        if cache is None:
            return
        self.device.set_tensor(cache.cells, positions.astype(np.int64).tobytes())
        if cache.mask is not None:
            distance = positions[:, None] - np.arange(cache.n_kv)
            seen = (distance >= 0) & (distance < (n_swa or cache.n_kv))
            dtype = np.float16 if cache.mask.type == GGMLType.F16 else np.float32
            self.device.set_tensor(cache.mask, np.where(seen, 0, -np.inf).astype(dtype).tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.device.close()
        self.gguf.close()
