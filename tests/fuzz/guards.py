"""Buffers between pages that nobody may touch, so that a byte too far ends the process.

Used in fuzz runs in place of the devices' own buffers and of the native core's scratch memory. A
buffer ends (to 8 bytes) where a page without rights begins, or begins where one ends; what is left
on the other side is filled with a pattern that is looked at when the buffer goes. Linux only.
"""

import ctypes
import mmap
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any, Final
from unittest import mock

from app.devices.native_buffer import NativeBuffer
from app.devices.native_executor import NativeExecutor
from app.devices.native_steps import ScratchAreas

_PAGE: Final = mmap.PAGESIZE
_GRAIN: Final = 8
_PATTERN: Final = 0xA5
_NONE, _READ_WRITE, _PRIVATE_ANONYMOUS = 0, 3, 0x22

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

violations: Final[list[str]] = []
"""Buffers beside which somebody wrote."""


class Side:
    """Where the next buffers have their guard: behind, or in front."""

    behind = True


_live: Final[set[int]] = set()


def n_live() -> int:
    """Number of guarded buffers that are held by somebody."""
    return len(_live)


class _Bytes:
    """What an mmap offers and a ctypes array does not: assignment from any bytes."""

    def __setitem__(self, at: slice, data: bytes) -> None:
        memoryview(self).cast("B")[at] = data  # type: ignore[arg-type]


def _map(size: int) -> int:
    address = _LIBC.mmap(None, size, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "no memory for a guarded buffer")
    return int(address)


def _protect(address: int, size: int = _PAGE) -> None:
    if _LIBC.mprotect(address, size, _NONE):
        raise OSError(ctypes.get_errno(), "no page could be protected")


def guarded(size: int) -> "ctypes.Array[ctypes.c_char]":
    """Return `size` zeroed bytes, rounded up to 8: a guard at `Side`, a pattern opposite."""
    padded = max(_GRAIN, -(-size // _GRAIN) * _GRAIN)
    pages = -(-padded // _PAGE) * _PAGE
    whole = pages + 2 * _PAGE
    base = _map(whole)
    _protect(base)
    _protect(base + _PAGE + pages)
    rest = pages - padded
    start = base + _PAGE + (rest if Side.behind else 0)
    pattern = base + _PAGE + (0 if Side.behind else padded)
    ctypes.memset(pattern, _PATTERN, rest)
    kind = type("Guarded", (_Bytes, ctypes.c_char * padded), {})
    array: ctypes.Array[ctypes.c_char] = kind.from_address(start)  # type: ignore[attr-defined]
    _live.add(base)
    weakref.finalize(array, _release, base, whole, pattern, rest)
    return array


def _release(base: int, whole: int, pattern: int, rest: int) -> None:
    if ctypes.string_at(pattern, rest) != bytes([_PATTERN]) * rest:
        violations.append(f"a write beside a buffer of {whole - 2 * _PAGE - rest} bytes")
    _LIBC.munmap(base, whole)
    _live.discard(base)


class GuardedBuffer(NativeBuffer):
    """A native buffer on guarded memory."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.lock = RLock()
        self.regions = {}
        self.twin = None
        self._map: Any = guarded(size)
        self._address = ctypes.addressof(self._map)


def _host_storage(size: int) -> Any:
    import torch

    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(guarded(size), dtype=torch.uint8)


_holes: list[int] = []


def _spaced_offsets(areas: ScratchAreas) -> tuple[list[int], int]:
    """Each area ends where a page begins that `_take_memory` protects."""
    offsets, at = [], 0
    _holes.clear()
    for size in areas.sizes:
        padded = -(-size // 64) * 64
        at += -(-padded // _PAGE) * _PAGE
        offsets.append(at - padded)
        _holes.append(at)
        at += _PAGE
    return offsets, at


def _take_memory(executor: NativeExecutor, size: int) -> tuple[int, object]:
    executor.admit(size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for hole in _holes:
        _protect(base + hole)
    return base, memory


@contextmanager
def guards() -> Iterator[None]:
    """Put guards around everything that devices take from now on, inside the block."""
    with ExitStack() as stack:
        for where, name, what in (
            ("app.devices.native_device", "NativeBuffer", GuardedBuffer),
            ("app.devices.torch_device", "host_storage", _host_storage),
        ):
            stack.enter_context(mock.patch(f"{where}.{name}", what))
        stack.enter_context(mock.patch.object(ScratchAreas, "offsets", _spaced_offsets))
        stack.enter_context(mock.patch.object(NativeExecutor, "_take_memory", _take_memory))
        yield
