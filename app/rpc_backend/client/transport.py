"""One TCP connection to a worker, both ways at once.

Requests leave in the order of `submit()` calls without waiting for replies; replies resolve futures
in the same order. The caller's thread writes itself while the socket takes it, since waking another
thread costs more than sending; what the socket does not take at once goes to the sender thread. A
receiver thread reads replies and watches the clock. Whatever ends the connection is kept as the
cause and fails every waiter and every later call with a DeviceLostError. The last thread to leave
closes the socket.

A worker of our own says which request failed and goes on. A request that awaits a reply fails
alone. When one without a reply fails, everything that was asked behind it and is not answered yet
may rest on what was not done, so it fails as well; when nothing is under way, the next call does.
While nothing is under way such a worker is asked for a sign of life now and then.

Data of `submit()` that is read-only (bytes, a mapped file) is sent from where it lies; anything
else is copied unless it is gone before `submit()` returns.
"""

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import Final

from app.errors import DeviceLostError, LlamaServeError
from app.rpc_backend.client.endpoint import Endpoint
from app.rpc_backend.client.failures import failure
from app.rpc_backend.errors import RemoteProtocolError, VersionMismatchError
from app.rpc_backend.streams.base import Stream
from app.rpc_backend.wire.client_core import ClientCore, Expected, Reply
from app.rpc_backend.wire.constants import Cmd
from app.rpc_backend.wire.extensions import ErrorReply, Ping
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.wire.messages import Message

log = logging.getLogger(__name__)

ReplyBody = Message | bytes

_PARTS_PER_SEND: Final = 64
_MAX_HELD_BYTES: Final = 64 * 1024
_SEND_BYTES: Final = 1024 * 1024
_MAX_TICK_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """How long a worker may show no sign of life while something is due, and how many bytes may
    wait to be sent before `submit()` blocks; after how long without traffic a worker of our own is
    asked for a sign of life, and how long it may take.
    """

    request_timeout_s: float = 600.0
    max_queued_bytes: int = 64 * 1024 * 1024
    ping_after_s: float = 15.0
    ping_timeout_s: float = 15.0


@dataclass(frozen=True, slots=True)
class _Waiter:
    future: Future[ReplyBody]
    command: Cmd
    size: int | None
    since: float


class Transport:
    """Sends requests and resolves replies over an open stream whose HELLO is done.

    Any thread may call; the two threads inside own the stream's two directions.
    """

    def __init__(
        self, stream: Stream, core: ClientCore, endpoint: Endpoint, limits: TransportLimits
    ) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self._stream = stream
        self._core = core
        self._endpoint = endpoint
        self._limits = limits
        self._tick_s = _tick_s(limits)
        self._changed = threading.Condition()
        self._outgoing: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._flushing = False
        self._waiters: deque[_Waiter] = deque()
        self._progress_at = time.monotonic()
        self._cause: str | None = None
        self.n_failures = 0
        self._failed: LlamaServeError | None = None
        self._n_tainted = 0
        self._wake_reader, self._wake_writer = socket.socketpair()
        stream.settimeout(0)
        self._threads = [
            threading.Thread(target=self._guard, args=(loop,), name=name, daemon=True)
            for loop, name in (
                (self._send_loop, f"rpc-send-{endpoint}"),
                (self._receive_loop, f"rpc-receive-{endpoint}"),
            )
        ]
        self._n_running = len(self._threads)
        for thread in self._threads:
            thread.start()

    @property
    def cause(self) -> str | None:
        """Why the connection is over, None while it is not."""
        return self._cause

    def submit(
        self, message: Message, data: Body = b"", *, flush: bool = True
    ) -> Future[ReplyBody] | None:
        """Send a request and the data behind it; return the future of its reply if it has one.
        Without `flush` the request may wait for the next one that is flushed.

        Raises: DeviceLostError; whatever an earlier request without a reply failed with.
        """
        view = memoryview(data).cast("B")
        with self._changed:
            while self._queued_bytes > self._limits.max_queued_bytes and self._cause is None:
                self._changed.wait()
            if self._cause is not None:
                raise DeviceLostError(self._cause)
            if self._failed is not None and not self._n_tainted:
                error, self._failed = self._failed, None
                raise error
            frame, expected = self._core.request(message, len(view))
            future = None if expected is None else self._await(expected)
            self._enqueue(frame, view)
            if flush or future is not None or self._queued_bytes > _MAX_HELD_BYTES:
                self._flush()
            self._own_the_rest(view)
            return future

    @property
    def position(self) -> int:
        """Where the next request begins: the bytes sent, and those that wait."""
        with self._changed:
            return self.bytes_sent + self._queued_bytes

    def wait_sent(self, position: int, timeout_s: float) -> None:
        """Wait until what goes before `position` has left, the time is up, or all is over."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.bytes_sent >= position or self._cause is not None, timeout_s
            )

    def close(self) -> None:
        """End the connection; whoever still waits gets a DeviceLostError."""
        self.fail("the connection was closed by this side")
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def fail(self, cause: str) -> None:
        """Give the connection up for a reason; the first reason counts."""
        with self._changed:
            if self._cause is not None:
                return
            self._cause = self._describe(cause)
            if self._waiters or self._has_unsent():
                self._stream.abort_on_close()
            waiters, self._waiters = self._waiters, deque()
            self._outgoing.clear()
            self._queued_bytes = 0
            self._wake_writer.close()
            self._changed.notify_all()
        for waiter in waiters:
            waiter.future.set_exception(DeviceLostError(self._cause))

    def _is_over(self) -> bool:
        return self._cause is not None

    def _describe(self, cause: str) -> str:
        parts = [f"RPC worker {self._endpoint}: {cause}"]
        if self._waiters:
            head = self._waiters[0]
            waited = time.monotonic() - head.since
            parts.append(
                f"while {len(self._waiters)} replies were due, first {head.command.name} "
                f"({head.size or 0} bytes, asked {waited:.1f} s ago)"
            )
        if self._queued_bytes:
            parts.append(f"with {self._queued_bytes} bytes not yet sent")
        return ", ".join(parts)

    def _await(self, expected: Expected) -> Future[ReplyBody]:
        future: Future[ReplyBody] = Future()
        future.set_running_or_notify_cancel()
        number = expected.command.number
        self._waiters.append(_Waiter(future, number, expected.size, time.monotonic()))
        return future

    def _enqueue(self, frame: bytes, data: memoryview) -> None:
        if not self._outgoing:
            self._progress_at = time.monotonic()
        self._outgoing.append(memoryview(frame))
        if data:
            self._outgoing.append(data)
        self._queued_bytes += len(frame) + len(data)

    def _own_the_rest(self, data: memoryview) -> None:
        """Copy what is left of data that the caller may change once `submit()` returns; it was
        queued last, so it is the last part if any of it is left.
        """
        if data and self._outgoing and not data.readonly:
            self._outgoing[-1] = memoryview(bytes(self._outgoing[-1]))

    def _flush(self) -> None:
        """Write what the socket takes without waiting, and leave the rest to the sender."""
        try:
            while self._outgoing and self._send_some():
                pass
        except OSError:
            log.debug("%s: the sender thread will report the failure", self._endpoint)
        self._flushing = self._has_unsent()
        if self._flushing:
            self._changed.notify_all()

    def _send_some(self) -> bool:
        """Write one system call's worth; return whether the socket may take more."""
        try:
            sent = self._stream.send(self._next_parts())
        except BlockingIOError:
            return False
        self.bytes_sent += sent
        self._queued_bytes -= sent
        self._progress_at = time.monotonic()
        while sent:
            part = self._outgoing[0]
            if sent < len(part):
                self._outgoing[0] = part[sent:]
                return sent == _SEND_BYTES
            sent -= len(self._outgoing.popleft())
        return True

    def _has_unsent(self) -> bool:
        return bool(self._outgoing) or self._stream.has_unsent

    def _next_parts(self) -> list[memoryview]:
        """The head of the queue, up to the first part that is too large to go as a whole."""
        parts = []
        for part in islice(self._outgoing, _PARTS_PER_SEND):
            parts.append(part[:_SEND_BYTES])
            if len(part) > _SEND_BYTES:
                break
        return parts

    def _guard(self, loop: Callable[[], None]) -> None:
        """Run one of the loops and turn whatever ends it into the cause."""
        try:
            loop()
        except (RemoteProtocolError, VersionMismatchError) as error:
            self.fail(f"the worker broke the protocol: {error}")
        except OSError as error:
            self.fail(f"the connection broke: {error.strerror or error}")
        except Exception as error:
            # A waiter must never wait for a dead thread.
            log.exception("%s: the connection's thread failed", self._endpoint)
            self.fail(f"internal error: {error!r}")
        finally:
            with self._changed:
                self._n_running -= 1
                if self._n_running == 0:
                    self._stream.close()
                    self._wake_reader.close()

    def _poller(self, events: int) -> select.poll:
        """Return what waits for the socket or for the end of the connection."""
        poller = select.poll()
        poller.register(self._stream.fileno(), events)
        poller.register(self._wake_reader, select.POLLIN)
        return poller

    def _send_loop(self) -> None:
        poller = self._poller(select.POLLOUT)
        while True:
            with self._changed:
                while not self._flushing and self._cause is None:
                    self._changed.wait()
            if self._is_over():
                return
            ready = poller.poll(self._tick_s * 1000)
            with self._changed:
                if self._is_over():
                    return
                if ready:
                    self._send_some()
                    self._flushing = self._has_unsent()
                    self._changed.notify_all()
                else:
                    self._check_stall("the worker does not take the bytes sent to it")

    def _receive_loop(self) -> None:
        poller = self._poller(select.POLLIN)
        while not self._is_over():
            if not (self._stream.has_data or poller.poll(self._tick_s * 1000)):
                with self._changed:
                    if self._waiters:
                        self._check_stall("the worker does not answer")
                self._ask_for_life()
                continue
            if self._is_over():
                return
            try:
                n = self._stream.recv_into(self._core.writable())
            except BlockingIOError:
                continue
            if n == 0:
                self.fail(f"the worker closed the connection{self._last_words()}")
                return
            self._core.wrote(n)
            self.bytes_received += n
            self._progress_at = time.monotonic()
            while (reply := self._core.next_reply()) is not None:
                self._resolve(reply)

    def _check_stall(self, what: str) -> None:
        since, limit_s = self._progress_at, self._limits.request_timeout_s
        if self._waiters:
            head = self._waiters[0]
            since = max(since, head.since)
            if head.command is Cmd.PING:
                limit_s = self._limits.ping_timeout_s
        if time.monotonic() - since > limit_s:
            self.fail(f"{what}, for {limit_s:g} s")

    def _ask_for_life(self) -> None:
        """Send a ping when nothing has been under way for a while; stock workers know none."""
        with self._changed:
            idle_s = time.monotonic() - self._progress_at
            is_busy = self._waiters or self._outgoing or self._failed is not None
            if is_busy or not self._core.is_extended or idle_s <= self._limits.ping_after_s:
                return
        try:
            self.submit(Ping(0))
        except LlamaServeError as error:
            log.debug("%s: no ping: %s", self._endpoint, error)

    def _resolve(self, reply: Reply) -> None:
        error = None
        if isinstance(reply.body, ErrorReply):
            error = failure(self._endpoint, reply.body)
        with self._changed:
            if self._is_over():
                return
            if error is not None:
                self.n_failures += 1
            if reply.command is None:
                assert error is not None
                self._taint(error)
                return
            waiter = self._waiters.popleft()
            error = error or self._inherited()
        body = reply.body
        if error is not None:
            waiter.future.set_exception(error)
        else:
            waiter.future.set_result(bytes(body) if isinstance(body, bytearray) else body)

    def _taint(self, error: LlamaServeError) -> None:
        """Let everything under way fail with the failure of a request before it."""
        log.warning("%s", error)
        self._failed = self._failed or error
        if any(waiter.command is not Cmd.PING for waiter in self._waiters):
            self._n_tainted = len(self._waiters)

    def _inherited(self) -> LlamaServeError | None:
        """Return what the oldest waiter fails with because of a request before it."""
        if not self._n_tainted:
            return None
        error = self._failed
        self._n_tainted -= 1
        if not self._n_tainted:
            self._failed = None
        return error

    def _last_words(self) -> str:
        return "" if self._failed is None else f" after a failure ({self._failed})"


def _tick_s(limits: TransportLimits) -> float:
    """How often the clock is looked at."""
    shortest = min(limits.request_timeout_s, limits.ping_after_s, limits.ping_timeout_s)
    return min(max(shortest / 4, 0.01), _MAX_TICK_S)
