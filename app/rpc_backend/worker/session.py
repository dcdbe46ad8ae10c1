"""One client's conversation with the worker, without a socket.

Joins the wire's core, the handlers and the client's state: bytes in, bytes out. A command that
fails is told to a client that understands it, and the conversation goes on; with a stock client,
and after what breaks the protocol itself, one SessionError names the command and the reason, the
caller logs it and closes the connection. Either way the worker lives.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from app.devices.base import Device
from app.errors import LlamaServeError
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.wire.messages import GetTensor, GetTensor2D, Hello, Message
from app.rpc_backend.wire.worker_core import Request, WorkerCore
from app.rpc_backend.worker.access import OPEN, Access
from app.rpc_backend.worker.budget import Budget, Held
from app.rpc_backend.worker.extended import error_code
from app.rpc_backend.worker.handlers import BESIDE, DATA_HANDLERS, HANDLERS
from app.rpc_backend.worker.lanes import Later
from app.rpc_backend.worker.state import ClientState
from app.rpc_backend.worker.tensor_store import TensorStore
from app.rpc_backend.worker.transfers import Pieces, Promise

log = logging.getLogger(__name__)

FIELDS: Final = 7
"""Level below DEBUG, at which requests are shown with their fields, cut after a line or two."""

ALL_FIELDS: Final = 5
"""Level below that, at which nothing is cut."""

_MAX_SHOWN: Final = 300

_MAX_PROMISED: Final = 16

_READS: Final = (GetTensor, GetTensor2D, x.WaitBuffer)
"""Requests that will most likely wait for the graph before them."""


class SessionError(LlamaServeError):
    """The conversation is over; says at which command and why."""


class Session:
    """Serves one client; used by one thread."""

    def __init__(
        self,
        devices: Sequence[Device],
        version: int,
        cache: TensorStore | None = None,
        peer: str = "client",
        access: Access = OPEN,
        budget: Budget | None = None,
    ) -> None:
        """`budget` is what all clients share, None for one of its own."""
        budget = budget or Budget(devices)
        self.state = ClientState(devices, version, cache, peer, access, budget)
        self._reading = Held(budget, "a request")
        self._core = WorkerCore(version, locked=access.secret is not None)
        self._skipping = False
        self._promised: deque[tuple[Request, Promise]] = deque()

    @property
    def has_said_hello(self) -> bool:
        """Whether the client has shown that it speaks the protocol and may be served."""
        return self._core.is_open

    @property
    def is_extended(self) -> bool:
        """Whether the client is of our own kind."""
        return self._core.is_extended

    @property
    def has_only_greeted(self) -> bool:
        """Whether the client has said HELLO and nothing more."""
        return self._core.has_only_greeted

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
        while True:
            try:
                self._reading.resize(self._core.footprint)
                request = self._core.next_request()
            except LlamaServeError as error:
                yield from self._keep_promises()
                if self._core.is_extended:
                    yield self._core.error(None, error_code(error), str(error))
                raise SessionError(str(error)) from error
            if request is None:
                yield from self._keep_promises()
                self.state.lanes.start()
                yield from self._late_failures()
                return
            yield from self._handle(request)

    @property
    def has_late_failures(self) -> bool:
        """Whether there is something that `late_failures` would tell."""
        return self._core.is_extended and len(self.state.lanes.failures) > 0

    def late_failures(self) -> Iterator[Body]:
        """Tell a client that understands it of requests that failed since it was last answered; not
        while the bytes of `wrote` are being sent.
        """
        if self._core.is_extended:
            yield from self._late_failures()

    def close(self) -> None:
        """Free everything that the client had."""
        self.state.close()
        self._reading.release()

    def _handle(self, request: Request) -> Iterator[Body]:
        message, name, chunk = request.message, request.command.number.name, request.chunk
        yield from self._late_failures()
        if self._skipping and chunk is not None and chunk.at:
            return
        self._skipping = False
        if log.isEnabledFor(logging.DEBUG) and (chunk is None or chunk.at == 0):
            log.debug("%s: %s", self.state.peer, _shown(name, message))
        if not isinstance(message, _READS):
            self.state.lanes.start()
        yield from self._keep_promises(_MAX_PROMISED if isinstance(message, BESIDE) else 0)
        began = False
        try:
            if chunk is not None:
                DATA_HANDLERS[type(message)](self.state, message, chunk)
                return
            outcome = HANDLERS[type(message)](self.state, message)
            # The handler may have waited for a graph that failed; a reply rests on it.
            yield from self._late_failures()
            if isinstance(outcome, Pieces):
                began = True
                yield self._core.reply_header(outcome.size)
                yield from outcome.pieces
            elif isinstance(outcome, Later):
                self.state.lanes.submit(request, outcome)
            elif isinstance(outcome, Promise):
                self._promised.append((request, outcome))
            elif outcome is not None:
                yield self._core.reply(outcome)
                self._advance(message, outcome)
        except SessionError:
            raise
        except LlamaServeError as error:
            self._skipping = True
            self.state.drop_writer()
            yield from self._keep_promises()
            yield from self._fail(request, error, is_silent=began)
        except Exception as error:
            # The worker outlives every client, and every bug that one client may touch.
            log.exception("%s: %s failed", self.state.peer, name)
            yield from self._keep_promises()
            yield from self._fail(request, error, is_silent=began)

    def _keep_promises(self, n_left: int = 0) -> Iterator[Body]:
        """Wait for promised replies, in order, until `n_left` are left.

        Raises: SessionError.
        """
        while len(self._promised) > n_left:
            request, promise = self._promised.popleft()
            try:
                reply = promise.reply.result()
            except Exception as error:
                if not isinstance(error, LlamaServeError):
                    log.exception("%s: %s failed", self.state.peer, request.command.number.name)
                yield from self._fail(request, error)
            else:
                yield self._core.reply(reply)

    def _late_failures(self) -> Iterator[Body]:
        """Tell of requests that failed after others had been read behind them.

        Raises: SessionError.
        """
        failures = self.state.lanes.failures
        while failures:
            failure = failures.popleft()
            yield from self._fail(failure.request, failure.error)

    def _fail(
        self, request: Request, error: Exception, *, is_silent: bool = False
    ) -> Iterator[Body]:
        """Answer a command that failed, where a client understands it and, unless `is_silent`, has
        not read half of a reply.

        Raises: SessionError when that ends the conversation.
        """
        name = request.command.number.name
        may_tell = self._core.is_extended and not is_silent
        if isinstance(error, LlamaServeError):
            text = f"{name}: {error}"
            if not may_tell:
                raise SessionError(text) from error
            self.state.n_failures += 1
            self.state.note(logging.WARNING, "%s", text)
            yield self._core.error(request, error_code(error), text)
            return
        if may_tell:
            yield self._core.error(request, x.ErrorCode.INTERNAL, f"{name}: {error!r}")
        raise SessionError(f"{name}: internal error: {error!r}") from error

    def _advance(self, message: Message, outcome: Message) -> None:
        """Go on to what a client may do after a step of the greeting.

        Raises: SessionError when it may do nothing.
        """
        if isinstance(message, Hello) and self.state.access.refuses_plain:
            raise SessionError("refused: a client without TLS; this worker speaks nothing else")
        if isinstance(message, x.Extend):
            self._core.extend()
        elif isinstance(outcome, x.ProveReply):
            if not outcome.is_right:
                raise SessionError("refused: the client does not know this worker's secret")
            self._core.unlock()


def _shown(name: str, message: Message) -> str:
    """What the log shows of a request, as much as is asked for."""
    if not log.isEnabledFor(FIELDS):
        return name
    fields = str(message)
    is_cut = len(fields) > _MAX_SHOWN and not log.isEnabledFor(ALL_FIELDS)
    return f"{name} {fields[:_MAX_SHOWN]}…" if is_cut else f"{name} {fields}"
