"""One measured line as llama-bench (b11434) records it: field names, order and types are its own.

Fields of flags that have no effect here keep llama-bench's default. `n_streams` is ours; it only
appears when `--streams` was given.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from app.cli.benchmark.case import Case
from app.devices.base import Device
from app.devices.host_memory import cpu_name
from app.engine.config import FlashAttention
from app.engine.loader import LoadedModel
from app.version import BUILD_NUMBER, __version__

NS_PER_S: Final = 1_000_000_000

_FLASH_NUMBERS: Final = {FlashAttention.AUTO: -1, FlashAttention.OFF: 0, FlashAttention.ON: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The fields; `avg_ts` and `stddev_ts` are tokens per second."""

    build_commit: str
    build_number: int
    cpu_info: str
    gpu_info: str
    backends: str
    model_filename: str
    model_type: str
    model_size: int
    model_n_params: int
    n_batch: int
    n_ubatch: int
    n_threads: int
    cpu_mask: str = "0x0"
    cpu_strict: bool = False
    poll: int = 50
    type_k: str
    type_v: str
    n_gpu_layers: int
    n_cpu_moe: int = 0
    split_mode: str
    main_gpu: int
    no_kv_offload: bool = False
    flash_attn: int
    devices: str
    tensor_split: str
    tensor_buft_overrides: str = "none"
    load_mode: str = "auto"
    lazy_mode: str = "auto"
    embeddings: bool = False
    no_op_offload: int = 0
    no_host: bool = False
    repack: bool = True
    fit_target: int = 0
    fit_min_ctx: int = 0
    n_prompt: int
    n_gen: int
    n_depth: int
    test_time: str
    avg_ns: int
    stddev_ns: int
    avg_ts: float
    stddev_ts: float
    n_streams: int


TYPES: Final[dict[str, object]] = {field.name: field.type for field in fields(Record)}
STREAMS: Final = "n_streams"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A record, the name of its test, and what each repetition took and reached."""

    record: Record
    test_name: str
    samples_ns: tuple[int, ...]
    samples_ts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Setup:
    """What all tests on one loaded model have in common."""

    cpu_info: str
    gpu_info: str
    backends: str
    model_type: str
    model_size: int
    model_n_params: int


def setup_of(loaded: LoadedModel) -> Setup:
    """Describe the model and the devices that it may lie on."""
    devices = loaded.pool.devices
    size_label = loaded.gguf.metadata.get("general.size_label")
    n_params = loaded.info.n_params
    size = size_label if isinstance(size_label, str) else f"{n_params / 1e6:.1f}M"
    return Setup(
        cpu_info=cpu_name(),
        gpu_info=", ".join(device.info.description for device in devices),
        backends=_backends(devices),
        model_type=f"{loaded.info.arch} {size} {loaded.info.ftype}",
        model_size=loaded.info.size,
        model_n_params=n_params,
    )


def _backends(devices: Sequence[Device]) -> str:
    """Kinds of devices by ggml's names, workers last; CPU when there is nothing else."""
    kinds = dict.fromkeys(device.info.name.rstrip("0123456789") for device in devices)
    return ",".join(sorted(kinds, key=lambda kind: kind == "RPC")) or "CPU"


def start_time() -> str:
    """Return the time in the form of RFC 3339."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def measurement(case: Case, setup: Setup, test_time: str, samples_ns: Sequence[int]) -> Measurement:
    """Put together what is known about a measured case."""
    load, test = case.load, case.test
    samples_ts = tuple(NS_PER_S * test.n_tokens / max(ns, 1) for ns in samples_ns)
    record = Record(
        build_commit=__version__,
        build_number=BUILD_NUMBER,
        cpu_info=setup.cpu_info,
        gpu_info=setup.gpu_info,
        backends=setup.backends,
        model_filename=str(load.model),
        model_type=setup.model_type,
        model_size=setup.model_size,
        model_n_params=setup.model_n_params,
        n_batch=case.n_batch,
        n_ubatch=load.n_ubatch,
        n_threads=load.n_threads,
        type_k=load.type_k,
        type_v=load.type_v,
        n_gpu_layers=load.n_gpu_layers,
        split_mode=load.split_mode,
        main_gpu=load.main_gpu,
        flash_attn=_FLASH_NUMBERS[load.flash_attn],
        devices=load.devices,
        tensor_split="/".join(f"{share:.2f}" for share in load.shares) or "0.00",
        n_prompt=test.n_prompt,
        n_gen=test.n_gen,
        n_depth=test.n_depth,
        test_time=test_time,
        avg_ns=sum(samples_ns) // len(samples_ns),
        stddev_ns=int(_deviation(samples_ns)),
        avg_ts=statistics.fmean(samples_ts),
        stddev_ts=_deviation(samples_ts),
        n_streams=test.n_streams,
    )
    return Measurement(record, test.name, tuple(samples_ns), samples_ts)


def _deviation(samples: Sequence[float]) -> float:
    return statistics.stdev(samples) if len(samples) > 1 else 0.0
