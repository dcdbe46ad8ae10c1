"""Who waits for a worker's replies, and what its failures do to them.

Used by the transport, under its lock. A request that awaits a reply fails alone. When one without
a reply fails, everything that was asked behind it and is not answered yet may rest on what was not
done, so it fails as well; when nothing is under way, the next request does.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

from app.errors import LlamaServeError
from app.rpc_backend.client.endpoint import Endpoint
from app.rpc_backend.client.failures import failure
from app.rpc_backend.wire.client_core import Expected, Reply
from app.rpc_backend.wire.constants import Cmd
from app.rpc_backend.wire.extensions import ErrorReply
from app.rpc_backend.wire.messages import Message

log = logging.getLogger(__name__)

ReplyBody = Message | bytes

OnFailure = Callable[[LlamaServeError], None]
"""Takes what a request without a reply failed with."""

_MAX_WATCHED: Final = 1024


@dataclass(frozen=True, slots=True)
class Waiter:
    """A reply that is due: for what, of how many bytes, asked when, after how many requests without
    a reply.
    """

    future: Future[ReplyBody]
    command: Cmd
    size: int | None
    since: float
    n_before: int


class Waiters:
    """The replies due on one connection, oldest first."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.n_failures = 0
        self._endpoint = endpoint
        self._due: deque[Waiter] = deque()
        self._failed: LlamaServeError | None = None
        self._n_tainted = 0
        self._watched: dict[int, OnFailure] = {}
        self._n_told = 0
        self._n_read = 0

    def __len__(self) -> int:
        return len(self._due)

    @property
    def head(self) -> Waiter | None:
        """Who has waited longest."""
        return self._due[0] if self._due else None

    @property
    def failed(self) -> LlamaServeError | None:
        """What a request without a reply failed with, until somebody has got it."""
        return self._failed

    @property
    def is_caught_up(self) -> bool:
        """Whether the worker is known to have read all that was sent before the oldest waiter."""
        return self._n_read == (self._due[0].n_before if self._due else self._n_told)

    def take_failure(self) -> LlamaServeError | None:
        """Return a failure that nobody who waits will get; the caller raises it."""
        if self._n_tainted:
            return None
        error, self._failed = self._failed, None
        return error

    def add(self, expected: Expected | None) -> Future[ReplyBody] | None:
        """Return the future of the reply to the request that is about to be sent, if it has one."""
        if expected is None:
            self._n_told += 1
            return None
        future: Future[ReplyBody] = Future()
        future.set_running_or_notify_cancel()
        number = expected.command.number
        since = time.monotonic()
        self._due.append(Waiter(future, number, expected.size, since, self._n_told))
        return future

    def watch(self, request: int, on_failure: OnFailure) -> None:
        """Call this when the request of that number, which has no reply, fails. Nothing says that
        one has not, so only the last ones are watched.
        """
        self._watched[request] = on_failure
        if len(self._watched) > _MAX_WATCHED:
            del self._watched[next(iter(self._watched))]

    def settle(self, reply: Reply) -> Callable[[], None]:
        """Take the oldest waiter, or a failure of a request without a reply, off the list; return
        what is to be called once the lock is given back.
        """
        body, error = reply.body, None
        if isinstance(body, ErrorReply):
            error = failure(self._endpoint, body)
            self.n_failures += 1
            if reply.command is None:
                self._taint(error)
                on_failure = self._watched.pop(body.request, _ignore)
                return partial(on_failure, error)
        waiter = self._due.popleft()
        self._n_read = waiter.n_before
        inherited = self._inherited()
        error = error or inherited
        if error is not None:
            return partial(waiter.future.set_exception, error)
        value = bytes(body) if isinstance(body, bytearray) else body
        return partial(waiter.future.set_result, value)

    def drop(self) -> list[Waiter]:
        """Return everybody who waits, who will get no reply any more."""
        left = list(self._due)
        self._due.clear()
        self._watched.clear()
        return left

    def _taint(self, error: LlamaServeError) -> None:
        """Let everything under way fail with the failure of a request before it."""
        log.warning("%s", error)
        self._failed = self._failed or error
        if any(waiter.command is not Cmd.PING for waiter in self._due):
            self._n_tainted = len(self._due)

    def _inherited(self) -> LlamaServeError | None:
        """Return what the oldest waiter fails with because of a request before it."""
        if not self._n_tainted:
            return None
        error = self._failed
        self._n_tainted -= 1
        if not self._n_tainted:
            self._failed = None
        return error


def _ignore(error: LlamaServeError) -> None:
    """Nobody asked to be told of it."""
