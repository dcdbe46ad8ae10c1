"""Bytes of a file, handed to a device piece by piece and hashed on the way.

Used by the tensor cache and by a worker's own model files. The file is read, not mapped: one that
is cut short meanwhile ends in fewer bytes and not in the end of the process.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.rpc_backend.hashing import fnv1a_64
from app.rpc_backend.wire.fnv import OFFSET_BASIS
from app.rpc_backend.wire.layout import Body

Write = Callable[[Body, int], None]
"""Called with (piece, at); the piece is only valid during the call."""

_PIECE_BYTES: Final = 1024 * 1024


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
    buffer = memoryview(bytearray(min(size, _PIECE_BYTES)))
    at, state = 0, OFFSET_BASIS
    while at < size:
        n = os.preadv(descriptor, [buffer[: size - at]], start + at)
        if n == 0:
            break
        piece = buffer[:n]
        state = fnv1a_64(piece, state)
        if write is not None:
            write(piece, at)
        at += n
    return HandedOver(at, state)
