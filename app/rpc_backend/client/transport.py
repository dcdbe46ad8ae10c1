"""One TCP connection to a worker, both ways at once.

Requests leave in the order of `submit()` calls without waiting for replies; replies resolve futures
in the same order. The caller's thread writes itself while the socket takes it, since waking another
thread costs more than sending; what the socket does not take at once goes to the sender thread. A
receiver thread reads replies and watches the clock. Whatever ends the connection is kept as the
cause and fails every waiter and every later call with a DeviceLostError. The last thread to leave
closes the socket.

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

from app.errors import DeviceLostError
from app.rpc_backend.client.endpoint import Endpoint, abort_on_close
from app.rpc_backend.errors import RemoteProtocolError, VersionMismatchError
from app.rpc_backend.wire.client_core import ClientCore, Expected, Reply
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
    wait to be sent before `submit()` blocks.
    """

    request_timeout_s: float = 600.0
    max_queued_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Waiter:
    future: Future[ReplyBody]
    label: str
    size: int
    since: float


class Transport:
    """Sends requests and resolves replies over a connected socket whose HELLO is done.

    Any thread may call; the two threads inside own the socket's two directions.
    """

    def __init__(
        self, sock: socket.socket, core: ClientCore, endpoint: Endpoint, limits: TransportLimits
    ) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self._sock = sock
        self._core = core
        self._endpoint = endpoint
        self._limits = limits
        self._tick_s = min(max(limits.request_timeout_s / 4, 0.01), _MAX_TICK_S)
        self._changed = threading.Condition()
        self._outgoing: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._flushing = False
        self._waiters: deque[_Waiter] = deque()
        self._progress_at = time.monotonic()
        self._cause: str | None = None
        self._wake_reader, self._wake_writer = socket.socketpair()
        sock.setblocking(False)
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

    def submit(
        self, message: Message, data: Body = b"", *, flush: bool = True
    ) -> Future[ReplyBody] | None:
        """Send a request and the data behind it; return the future of its reply if it has one.
        Without `flush` the request may wait for the next one that is flushed.

        Raises: DeviceLostError.
        """
        view = memoryview(data).cast("B")
        with self._changed:
            while self._queued_bytes > self._limits.max_queued_bytes and self._cause is None:
                self._changed.wait()
            if self._cause is not None:
                raise DeviceLostError(self._cause)
            frame, expected = self._core.request(message, len(view))
            future = None if expected is None else self._await(expected)
            self._enqueue(frame, view)
            if flush or future is not None or self._queued_bytes > _MAX_HELD_BYTES:
                self._flush()
            self._own_the_rest(view)
            return future

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
            if self._waiters or self._outgoing:
                abort_on_close(self._sock)
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
                f"while {len(self._waiters)} replies were due, first {head.label} "
                f"({head.size} bytes, asked {waited:.1f} s ago)"
            )
        if self._queued_bytes:
            parts.append(f"with {self._queued_bytes} bytes not yet sent")
        return ", ".join(parts)

    def _await(self, expected: Expected) -> Future[ReplyBody]:
        future: Future[ReplyBody] = Future()
        future.set_running_or_notify_cancel()
        name = expected.command.number.name
        self._waiters.append(_Waiter(future, name, expected.size, time.monotonic()))
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
        self._flushing = bool(self._outgoing)
        if self._flushing:
            self._changed.notify_all()

    def _send_some(self) -> bool:
        """Write one system call's worth; return whether the socket may take more."""
        try:
            sent = self._sock.sendmsg(self._next_parts())
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
                    self._sock.close()
                    self._wake_reader.close()

    def _poller(self, events: int) -> select.poll:
        """Return what waits for the socket or for the end of the connection."""
        poller = select.poll()
        poller.register(self._sock, events)
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
                    self._flushing = bool(self._outgoing)
                    self._changed.notify_all()
                else:
                    self._check_stall("the worker does not take the bytes sent to it")

    def _receive_loop(self) -> None:
        poller = self._poller(select.POLLIN)
        while not self._is_over():
            if not poller.poll(self._tick_s * 1000):
                with self._changed:
                    if self._waiters:
                        self._check_stall("the worker does not answer")
                continue
            if self._is_over():
                return
            try:
                n = self._sock.recv_into(self._core.writable())
            except BlockingIOError:
                continue
            if n == 0:
                self.fail("the worker closed the connection")
                return
            self._core.wrote(n)
            self.bytes_received += n
            self._progress_at = time.monotonic()
            while (reply := self._core.next_reply()) is not None:
                self._resolve(reply)

    def _check_stall(self, what: str) -> None:
        since = self._progress_at
        if self._waiters:
            since = max(since, self._waiters[0].since)
        if time.monotonic() - since > self._limits.request_timeout_s:
            self.fail(f"{what}, for {self._limits.request_timeout_s:g} s")

    def _resolve(self, reply: Reply) -> None:
        with self._changed:
            if self._is_over():
                return
            waiter = self._waiters.popleft()
        body = reply.body
        waiter.future.set_result(bytes(body) if isinstance(body, bytearray) else body)
