"""One client's conversation with the worker, without a socket.

Joins the wire's core, the handlers and the client's state: bytes in, bytes out. Whatever a client
sends ends in replies or in one SessionError that names the command and the reason; the caller logs
it and closes the connection, and the worker lives.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from app.devices.base import Device
from app.errors import LlamaServeError
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.wire.worker_core import Request, WorkerCore
from app.rpc_backend.worker.handlers import DATA_HANDLERS, HANDLERS, Pieces
from app.rpc_backend.worker.state import ClientState
from app.rpc_backend.worker.tensor_cache import TensorCache

log = logging.getLogger(__name__)

DETAIL: Final = 5
"""Level below DEBUG, at which requests are shown with all their fields."""


class SessionError(LlamaServeError):
    """The conversation is over; says at which command and why."""


class Session:
    """Serves one client; used by one thread."""

    def __init__(
        self,
        devices: Sequence[Device],
        version: int,
        cache: TensorCache | None = None,
        peer: str = "client",
    ) -> None:
        self.state = ClientState(devices, version, cache, peer)
        self._core = WorkerCore(version)

    @property
    def has_said_hello(self) -> bool:
        """Whether the client has shown that it speaks the protocol."""
        return self._core.is_open

    @property
    def is_between_requests(self) -> bool:
        """Whether this is a moment at which a client may leave."""
        return self._core.is_between_requests

    @property
    def position(self) -> str:
        """Where the conversation stands, for a message about its end."""
        return self._core.position

    def writable(self) -> memoryview:
        """Return where the next bytes from the client belong."""
        return self._core.writable()

    def wrote(self, n: int) -> Iterator[Body]:
        """Handle what `n` more bytes complete, and return the bytes to send back piece by piece.

        Raises: SessionError.
        """
        self._core.wrote(n)
        while (request := self._next()) is not None:
            yield from self._handle(request)

    def close(self) -> None:
        """Free everything that the client had."""
        self.state.close()

    def _next(self) -> Request | None:
        try:
            return self._core.next_request()
        except LlamaServeError as error:
            raise SessionError(str(error)) from error

    def _handle(self, request: Request) -> Iterator[Body]:
        message, name = request.message, request.command.number.name
        if log.isEnabledFor(logging.DEBUG) and (request.chunk is None or request.chunk.at == 0):
            log.debug("%s: %s", self.state.peer, message if log.isEnabledFor(DETAIL) else name)
        try:
            if request.chunk is not None:
                DATA_HANDLERS[type(message)](self.state, message, request.chunk)
                return
            outcome = HANDLERS[type(message)](self.state, message)
            if isinstance(outcome, Pieces):
                yield self._core.reply_header(outcome.size)
                yield from outcome.pieces
            elif outcome is not None:
                yield self._core.reply(outcome)
        except LlamaServeError as error:
            raise SessionError(f"{name}: {error}") from error
        except Exception as error:
            # The worker outlives every client, and every bug that one client may touch.
            log.exception("%s: %s failed", self.state.peer, name)
            raise SessionError(f"{name}: internal error: {error!r}") from error
