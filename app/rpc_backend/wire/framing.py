"""The receive buffer: bytes from a socket, without a copy where it matters.

A socket reads straight into `writable()` and says with `wrote(n)` how much came. Small frames are
parsed out of a scratch area; a large body gets a target of its own, so its bytes are received in
place. Memory is claimed as bytes arrive or up to what the reader asked for, never because a length
field says so.
"""

import struct
from typing import Final

REQUEST_HEADER: Final = struct.Struct("<BQ")
RESPONSE_HEADER: Final = struct.Struct("<Q")

_SCRATCH_BYTES: Final = 64 * 1024
_GROWTH_BYTES: Final = 256 * 1024


class ReceiveBuffer:
    """Bytes that have arrived but are not parsed yet; one thread at a time."""

    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._start = 0
        self._end = 0
        self._target = bytearray()
        self._filled = 0
        self._wanted = 0

    @property
    def n_unread(self) -> int:
        """Bytes that have arrived and were not returned."""
        return self._end - self._start + (self._filled if self._wanted else 0)

    @property
    def n_claimed(self) -> int:
        """Bytes of memory that were claimed for a body that has not all arrived."""
        return len(self._target)

    def writable(self) -> memoryview:
        """Return where the next bytes from the socket belong; never empty."""
        if self._wanted:
            return memoryview(self._target)[self._filled :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == _SCRATCH_BYTES:
            rest = bytes(self._scratch[self._start : self._end])
            self._scratch[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return self._scratch[self._end :]

    def wrote(self, n: int) -> None:
        """Count `n` bytes that the socket put into `writable()`."""
        if self._wanted:
            self._filled += n
        else:
            self._end += n

    def take(self, n: int) -> bytes | None:
        """Return the next `n` bytes, None until they are there; `n` is at most 64 KiB."""
        if self._end - self._start < n:
            return None
        piece = bytes(self._scratch[self._start : self._start + n])
        self._start += n
        return piece

    def fill(self, n: int, *, trusted: bool = False) -> bytearray | None:
        """Return the next `n` bytes in a fresh bytearray, None until they are there; the caller
        asks again for the same `n` then. Memory for a trusted `n` is claimed at once.
        """
        if not self._wanted:
            self._wanted = n
            self._target = bytearray(n if trusted else min(n, _GROWTH_BYTES))
            self._filled = 0
        self._move_from_scratch()
        if self._filled < self._wanted:
            self._grow_when_full()
            return None
        target, self._target = self._target, bytearray()
        self._wanted = 0
        return target

    def _move_from_scratch(self) -> None:
        while self._start < self._end and self._filled < self._wanted:
            room = min(len(self._target) - self._filled, self._end - self._start)
            piece = self._scratch[self._start : self._start + room]
            self._target[self._filled : self._filled + room] = piece
            self._start += room
            self._filled += room
            self._grow_when_full()

    def _grow_when_full(self) -> None:
        """Double a full target, so that what is claimed stays within twice what has arrived."""
        size = len(self._target)
        if self._filled == size and size < self._wanted:
            self._target.extend(bytes(min(size, self._wanted - size)))
