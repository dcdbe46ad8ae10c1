"""Finds and loads the native core: the best of the built levels that this machine can run.

Called by the native device. The libraries stand beside this file, one per level of instructions,
and are loaded through ctypes; calls release the interpreter lock. A library whose structs differ
from `layout` is an old build and not used.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.errors import ConfigError, DeviceLostError
from app.kernels.cpu.layout import Status, TypeSupport, struct_numbers

LEVELS: Final = ("avx512", "avx2", "portable")
FOLDER: Final = Path(__file__).parent

_I32, _I64, _PTR = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
_U64 = ctypes.c_uint64
_SIGNATURES: Final[dict[str, tuple[type | None, tuple[type, ...]]]] = {
    "ls_level": (ctypes.c_char_p, ()),
    "ls_supported": (_I32, ()),
    "ls_layout": (_I32, (_PTR, _I32)),
    "ls_pool_new": (_PTR, (_I32,)),
    "ls_pool_free": (None, (_PTR,)),
    "ls_run": (_I32, (_PTR, _PTR, _I64, _PTR, _PTR)),
    "ls_repack": (_I32, (_PTR, _I32, _PTR, _I64, _I64, _I32)),
    "ls_quantize_bytes": (_I64, (_I64, _I64)),
    "ls_scratch_bytes": (_I64, (_PTR, _I32)),
    "ls_matmul_limit": (_I32, (_I32,)),
    "ls_type_support": (_I32, (_I32,)),
    "ls_fnv1a_64": (_U64, (_PTR, _I64, _U64)),
}


class NativeLibrary:
    """One loaded level and a pool of threads; one caller at a time for `run` and `repack`."""

    def __init__(self, path: Path) -> None:
        """Raises: OSError when it cannot be loaded, AttributeError when a function is missing."""
        self._lib = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._lib, name)
            function.restype, function.argtypes = result, arguments
        self.level: str = self._lib.ls_level().decode()

    def is_supported(self) -> bool:
        """Whether this machine has the instructions of the level."""
        return bool(self._lib.ls_supported())

    def has_layout(self) -> bool:
        """Whether the library's structs are those of `layout`."""
        expected = struct_numbers()
        numbers = (ctypes.c_int64 * len(expected))()
        count = self._lib.ls_layout(numbers, len(expected))
        return count == len(expected) and list(numbers) == expected

    def new_pool(self, n_threads: int) -> "ThreadPool":
        """Start threads.

        Raises: ConfigError when the system refuses them.
        """
        handle = self._lib.ls_pool_new(n_threads)
        if not handle:
            raise ConfigError(f"threads {n_threads}: the system has not got so many")
        return ThreadPool(self._lib, handle, n_threads)

    def quantize_bytes(self, ne0: int, n_rows: int) -> int:
        """Bytes of scratch of a QUANTIZE step."""
        return int(self._lib.ls_quantize_bytes(ne0, n_rows))

    def type_support(self, type_: int) -> TypeSupport:
        """What steps can do with a type."""
        return TypeSupport(self._lib.ls_type_support(type_))

    def scratch_bytes(self, step: bytes, n_threads: int) -> int:
        """Bytes of scratch of any other step, given packed."""
        return int(self._lib.ls_scratch_bytes(ctypes.c_char_p(step), n_threads))

    def fnv1a_64(self, address: int, size: int, state: int) -> int:
        """Return the hash of `size` bytes at `address`, continued from `state`."""
        return int(self._lib.ls_fnv1a_64(address, size, state))

    def limit_matmul(self, path: int) -> int:
        """Choose the fastest kind of product that may be used, for tests."""
        return int(self._lib.ls_matmul_limit(path))


@dataclass(slots=True)
class RunResult:
    """How a run ended; `failed` is the step that ended it."""

    status: Status
    failed: int


class ThreadPool:
    """Threads that sleep while there is nothing to run; the caller is one of them."""

    def __init__(self, lib: ctypes.CDLL, handle: int, n_threads: int) -> None:
        self._lib = lib
        self._handle: int | None = handle
        self.n_threads = n_threads
        self._failed = ctypes.c_int64()
        self._failed_address = ctypes.addressof(self._failed)

    def run(self, steps: int, count: int, times_ns: int | None) -> RunResult | None:
        """Run `count` steps at address `steps`; None when all went well.

        Raises: DeviceLostError after `close`.
        """
        if self._handle is None:
            raise DeviceLostError("native core: used after it was closed")
        status = self._lib.ls_run(self._handle, steps, count, self._failed_address, times_ns)
        return None if status == Status.OK else RunResult(Status(status), self._failed.value)

    def repack(self, type_: int, address: int, ne0: int, n_rows: int, *, forward: bool) -> bool:
        """Group rows of weights in place or make them plain again; False when the type has no
        grouped layout.

        Raises: DeviceLostError after `close`.
        """
        if self._handle is None:
            raise DeviceLostError("native core: used after it was closed")
        status = self._lib.ls_repack(self._handle, type_, address, ne0, n_rows, int(forward))
        return bool(status == Status.OK)

    def close(self) -> None:
        """End the threads."""
        if self._handle is not None:
            self._lib.ls_pool_free(self._handle)
            self._handle = None


def load_library(level: str | None = None) -> "tuple[NativeLibrary | None, str]":
    """Return the best level's library (or `level`'s), and why there is none or what was passed
    over.

    Raises: ConfigError for an unknown level, or one that was asked for and cannot be used.
    """
    if level is not None and level not in LEVELS:
        raise ConfigError(f"level '{level}': expected one of {', '.join(LEVELS)}")
    reasons: list[str] = []
    for name in LEVELS if level is None else (level,):
        found = _try(name)
        if isinstance(found, NativeLibrary):
            return found, "; ".join(reasons)
        reasons.append(f"{name}: {found}")
    if level is not None:
        raise ConfigError(f"level '{level}' cannot be used: {reasons[0]}")
    return None, "; ".join(reasons)


def _try(level: str) -> NativeLibrary | str:
    path = FOLDER / f"_native_{level}.so"
    if not path.exists():
        return "not built"
    try:
        library = NativeLibrary(path)
    except (OSError, AttributeError) as error:
        return f"cannot be loaded ({error})"
    if not library.is_supported():
        return "not supported by this processor"
    return library if library.has_layout() else "built from other sources"
