"""What is measured: tests, what a model has to be loaded with for them, and all combinations.

The order of the combinations is llama-bench's, in which neighbours share a loaded model as often as
possible.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from app.cli.flags.environment import CpuChoice
from app.engine.config import CpuExecutor, EngineConfig, FlashAttention, SplitMode
from app.ggml.types import GGMLType


@dataclass(frozen=True, slots=True)
class Workload:
    """A prompt, a generation or both, behind `n_depth` tokens; `n_streams` sequences at once."""

    n_prompt: int
    n_gen: int
    n_depth: int = 0
    n_streams: int = 1

    @property
    def name(self) -> str:
        """The name in tables: pp512, tg128, pp512+tg128, tg128 x8, each with "@ d512" behind."""
        parts = []
        if self.n_prompt:
            parts.append(f"pp{self.n_prompt}")
        if self.n_gen:
            parts.append(f"tg{self.n_gen}")
        streams = f" x{self.n_streams}" if self.n_streams > 1 else ""
        depth = f" @ d{self.n_depth}" if self.n_depth else ""
        return "+".join(parts) + streams + depth

    @property
    def n_tokens(self) -> int:
        """Tokens that the clock sees."""
        return (self.n_prompt + self.n_gen) * self.n_streams

    @property
    def n_cells(self) -> int:
        """Cache cells that it fills."""
        return (self.n_depth + self.n_prompt + self.n_gen) * self.n_streams


@dataclass(frozen=True, slots=True)
class LoadKey:
    """What the model is loaded with; tests with equal keys share one load."""

    model: Path
    n_gpu_layers: int
    split_mode: str
    main_gpu: int
    devices: str
    tensor_split: str
    n_ubatch: int
    type_k: str
    type_v: str
    flash_attn: FlashAttention
    n_threads: int
    n_streams: int

    @property
    def shares(self) -> tuple[float, ...]:
        """The proportions of `tensor_split`; empty when all of them are 0."""
        shares = tuple(map(float, self.tensor_split.split("/")))
        return shares if any(shares) else ()


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the results."""

    load: LoadKey
    n_batch: int
    test: Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The values of every test parameter."""

    models: tuple[Path, ...]
    n_prompt: tuple[int, ...]
    n_gen: tuple[int, ...]
    n_pg: tuple[tuple[int, int], ...]
    n_depth: tuple[int, ...]
    n_streams: tuple[int, ...]
    n_batch: tuple[int, ...]
    n_ubatch: tuple[int, ...]
    type_k: tuple[str, ...]
    type_v: tuple[str, ...]
    n_threads: tuple[int, ...]
    n_gpu_layers: tuple[int, ...]
    split_mode: tuple[str, ...]
    main_gpu: tuple[int, ...]
    devices: tuple[str, ...]
    tensor_split: tuple[str, ...]
    flash_attn: tuple[FlashAttention, ...]


def cases_of(p: Parameters) -> tuple[Case, ...]:
    """Return every combination, the outermost parameter changing most slowly."""
    return tuple(
        Case(
            LoadKey(
                model=model,
                n_gpu_layers=n_gpu_layers,
                split_mode=split_mode,
                main_gpu=main_gpu,
                devices=devices,
                tensor_split=tensor_split,
                n_ubatch=n_ubatch,
                type_k=type_k,
                type_v=type_v,
                flash_attn=flash_attn,
                n_threads=n_threads,
                n_streams=test.n_streams,
            ),
            n_batch,
            test,
        )
        for model in p.models
        for n_gpu_layers in p.n_gpu_layers
        for split_mode in p.split_mode
        for main_gpu in p.main_gpu
        for devices in p.devices
        for tensor_split in p.tensor_split
        for n_batch in p.n_batch
        for n_ubatch in p.n_ubatch
        for type_k in p.type_k
        for type_v in p.type_v
        for flash_attn in p.flash_attn
        for n_threads in p.n_threads
        for test in _tests(p)
    )


def _tests(p: Parameters) -> Iterator[Workload]:
    """At each depth prompts, generations, pairs; then generations of several streams, as the number
    of streams decides the size of window caches and so needs a load of its own.
    """
    for depth in p.n_depth:
        yield from (Workload(n, 0, depth) for n in p.n_prompt if n)
        if 1 in p.n_streams:
            yield from (Workload(0, n, depth) for n in p.n_gen if n)
        yield from (Workload(*pair, depth) for pair in p.n_pg if any(pair))
    for n_streams in p.n_streams:
        if n_streams > 1:
            for depth in p.n_depth:
                yield from (Workload(0, n, depth, n_streams) for n in p.n_gen if n)


def by_load(cases: Sequence[Case]) -> Iterator[tuple[LoadKey, list[Case]]]:
    """Yield neighbours that share a loaded model."""
    for key, group in groupby(cases, key=lambda case: case.load):
        yield key, list(group)


def engine_config(
    key: LoadKey, cases: Sequence[Case], endpoints: tuple[str, ...], cpu: CpuChoice
) -> EngineConfig:
    """Return what to load for `cases`: room for the largest of them, in one pool of cells."""
    return EngineConfig(
        model_path=key.model,
        rpc_endpoints=endpoints,
        devices=None if key.devices == "auto" else tuple(key.devices.split("/")),
        n_gpu_layers=None if key.n_gpu_layers < 0 else key.n_gpu_layers,
        split_mode=SplitMode(key.split_mode),
        tensor_split=key.shares,
        main_gpu=key.main_gpu,
        n_ctx=max(case.test.n_cells for case in cases),
        n_batch=max(case.n_batch for case in cases),
        n_ubatch=key.n_ubatch,
        n_parallel=key.n_streams,
        kv_unified=True,
        cache_type_k=GGMLType[key.type_k.upper()],
        cache_type_v=GGMLType[key.type_v.upper()],
        flash_attn=key.flash_attn,
        cpu_executor=CpuExecutor(cpu.executor),
        cpu_level=cpu.level,
        threads=key.n_threads,
    )
