"""uvicorn's fast HTTP parser with a limit on the head of a request.

Its pure-Python parser has such a limit; this one would take headers without end into memory.
"""

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 << 10


class BoundedProtocol(HttpToolsProtocol):
    """One connection; a head that is too long is answered with 400 and the connection closed."""

    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._in_head, self._head_bytes = True, 0
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self._ends_head(data):
                self.send_400_response("Request header is too long.")
                return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _ends_head(self, data: bytes) -> bool:
        """A large part may be a short head with the beginning of a body."""
        return 0 <= data.find(b"\r\n\r\n") <= MAX_HEAD_BYTES
