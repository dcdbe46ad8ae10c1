"""Variables without a flag, that all three command lines know."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.cli.flags import readers
from app.cli.flags.option import Group, Option
from app.cli.flags.parser import Parsed
from app.cli.flags.securing import SECRET
from app.devices.registry import Executor
from app.kernels.cpu.library import LEVELS
from app.rpc_backend.rdma import keep_quiet
from app.rpc_backend.wire.constants import HASH_THRESHOLD_BYTES, MIN_HASHED_BYTES

_REFERENCE: Final = "reference"

CPU_LEVEL: Final = Option(
    dest="cpu_level",
    names=(),
    read=readers.one_of(*LEVELS, _REFERENCE),
    metavar="LEVEL",
    env="LLAMA_SERVE_CPU_LEVEL",
    help="kernels of this machine's CPU, instead of the best that it can run: "
    f"{', '.join(LEVELS)}, or {_REFERENCE} for torch",
)

CACHE_MIN_SIZE: Final = Option(
    dest="rpc_cache_min_size",
    names=(),
    read=readers.within(0),
    metavar="BYTES",
    env="GGML_RPC_CACHE_MIN_SIZE",
    help="weights of this size and more are offered to workers by hash and kept by workers with a "
    f"cache, instead of {MIN_HASHED_BYTES} (towards stock workers {HASH_THRESHOLD_BYTES})",
)

NO_RDMA: Final = Option(
    dest="rpc_no_rdma",
    names=(),
    read=readers.text,
    metavar="1",
    env="GGML_RPC_NO_RDMA",
    help="say nothing of peers that offer RDMA; they stay on TCP with and without it",
)

ENVIRONMENT: Final = Group("environment", (CPU_LEVEL, CACHE_MIN_SIZE, NO_RDMA, SECRET))


def heed_no_rdma(environ: Mapping[str, str]) -> None:
    """Leave the line on RDMA out where the variable is set; as in llama.cpp, to anything."""
    if NO_RDMA.env in environ:
        keep_quiet()


@dataclass(frozen=True, slots=True)
class CpuChoice:
    """What runs graphs on the CPU; `level` None is the best that there is."""

    executor: Executor
    level: str | None


def cpu_choice(parsed: Parsed) -> CpuChoice:
    """Return what LLAMA_SERVE_CPU_LEVEL asks for."""
    word = parsed.text(CPU_LEVEL.dest)
    if word == _REFERENCE:
        return CpuChoice("reference", None)
    return CpuChoice("native", word or None)
