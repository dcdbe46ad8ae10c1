"""Bytes of a file, handed to a device piece by piece and hashed on the way.

Used by the tensor cache and by a worker's own model files. The file is read, not mapped: one that
is cut short meanwhile ends in fewer bytes and not in the end of the process. Of large data one
piece is hashed, by a thread of its own, while the next one is read and written.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from app.rpc_backend.hashing import fnv1a_64
from app.rpc_backend.wire.fnv import OFFSET_BASIS
from app.rpc_backend.wire.layout import Body

Write = Callable[[Body, int], None]
"""Called with (piece, at); the piece is only valid during the call."""

_PIECE_BYTES: Final = 1024 * 1024
_LARGE_BYTES: Final = 4 * _PIECE_BYTES


@dataclass(frozen=True, slots=True)
class HandedOver:
    """How many bytes went over, and their FNV-1a-64 hash."""

    n_bytes: int
    hash: int


def hand_over(descriptor: int, start: int, size: int, write: Write | None = None) -> HandedOver:
    """Read up to `size` bytes of an open file from `start` on, give them to `write` if there is
    one, and hash them.

    Raises: OSError.
    """
    if size < _LARGE_BYTES:
        return _in_turn(descriptor, start, size, write)
    with ThreadPoolExecutor(1, "hash") as pool:
        return _side_by_side(descriptor, start, size, write, pool)


def _in_turn(descriptor: int, start: int, size: int, write: Write | None) -> HandedOver:
    buffer = memoryview(bytearray(min(size, _PIECE_BYTES)))
    at, state = 0, OFFSET_BASIS
    while n := os.preadv(descriptor, [buffer[: size - at]], start + at):
        piece = buffer[:n]
        state = fnv1a_64(piece, state)
        if write is not None:
            write(piece, at)
        at += n
    return HandedOver(at, state)


def _side_by_side(
    descriptor: int, start: int, size: int, write: Write | None, pool: ThreadPoolExecutor
) -> HandedOver:
    """One of two buffers is hashed while the other one is filled."""
    free, busy = (memoryview(bytearray(_PIECE_BYTES)) for _ in range(2))
    at = 0
    hashed: Future[int] = pool.submit(lambda: OFFSET_BASIS)
    while n := os.preadv(descriptor, [free[: size - at]], start + at):
        piece = free[:n]
        state = hashed.result()
        hashed = pool.submit(fnv1a_64, piece, state)
        if write is not None:
            write(piece, at)
        at += n
        free, busy = busy, free
    return HandedOver(at, hashed.result())
