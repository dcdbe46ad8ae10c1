"""What waits to be sent over one connection, and how it leaves.

Used by the transport, under its lock. Frames and data keep their order and are not copied; large
parts go in slices, so that no call takes long.
"""

import time
from collections import deque
from itertools import islice
from typing import Final

from app.rpc_backend.streams.base import Stream

_PARTS_PER_SEND: Final = 64
_SEND_BYTES: Final = 1024 * 1024


class Outbox:
    """Bytes on their way out. `moved_at` is when some last left or began to wait (monotonic)."""

    def __init__(self, stream: Stream) -> None:
        self.bytes_sent = 0
        self.n_bytes = 0
        self.moved_at = time.monotonic()
        self._stream = stream
        self._parts: deque[memoryview] = deque()

    @property
    def has_unsent(self) -> bool:
        """Whether anything waits, here or in the stream."""
        return bool(self._parts) or self._stream.has_unsent

    def add(self, frame: bytes, data: memoryview) -> None:
        """Put a request and the data behind it at the end."""
        if not self._parts:
            self.moved_at = time.monotonic()
        self._parts.append(memoryview(frame))
        if data:
            self._parts.append(data)
        self.n_bytes += len(frame) + len(data)

    def own_the_rest(self, data: memoryview) -> None:
        """Copy what is left of data that the caller may change afterwards; it was added last, so it
        is the last part if any of it is left.
        """
        if data and self._parts and not data.readonly:
            self._parts[-1] = memoryview(bytes(self._parts[-1]))

    def send_all(self) -> None:
        """Write what the socket takes without waiting.

        Raises: OSError.
        """
        while self._parts and self.send_some():
            pass

    def send_some(self) -> bool:
        """Write one system call's worth; return whether the socket may take more.

        Raises: OSError.
        """
        try:
            sent = self._stream.send(self._next_parts())
        except BlockingIOError:
            return False
        self.bytes_sent += sent
        self.n_bytes -= sent
        self.moved_at = time.monotonic()
        while sent:
            part = self._parts[0]
            if sent < len(part):
                self._parts[0] = part[sent:]
                return sent == _SEND_BYTES
            sent -= len(self._parts.popleft())
        return True

    def clear(self) -> None:
        """Drop everything."""
        self._parts.clear()
        self.n_bytes = 0

    def _next_parts(self) -> list[memoryview]:
        """The head of the queue, up to the first part that is too large to go as a whole."""
        parts = []
        for part in islice(self._parts, _PARTS_PER_SEND):
            parts.append(part[:_SEND_BYTES])
            if len(part) > _SEND_BYTES:
                break
        return parts
