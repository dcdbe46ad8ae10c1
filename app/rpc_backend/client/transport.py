"""One TCP connection to a worker, both ways at once.

Requests leave in the order of `submit()` calls without waiting for replies; replies resolve futures
in the same order. The caller's thread writes itself while the socket takes it, since waking another
thread costs more than sending; what the socket does not take at once goes to the sender thread. A
receiver thread reads replies and watches the clock. Whatever ends the connection is kept as the
cause and fails every waiter and every later call with a DeviceLostError. The last thread to leave
closes the socket.

A worker of our own says which request failed and goes on (`waiters.py`). While nothing is under way
it is asked for a sign of life now and then.

Data of `submit()` that is read-only (bytes, a mapped file) is sent from where it lies; anything
else is copied unless it is gone before `submit()` returns.
"""

import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from app.errors import DeviceLostError, LlamaServeError
from app.rpc_backend.client.endpoint import Endpoint
from app.rpc_backend.client.outbox import Outbox
from app.rpc_backend.client.pulse import Pulse, TransportLimits
from app.rpc_backend.client.waiters import OnFailure, ReplyBody, Waiters
from app.rpc_backend.errors import RemoteProtocolError, VersionMismatchError
from app.rpc_backend.streams.base import Stream
from app.rpc_backend.wire.client_core import ClientCore, Reply
from app.rpc_backend.wire.extensions import Ping
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.wire.messages import Message

log = logging.getLogger(__name__)

_MAX_HELD_BYTES: Final = 64 * 1024


class Transport:
    """Sends requests and resolves replies over an open stream whose HELLO is done.

    Any thread may call; the two threads inside own the stream's two directions.
    """

    def __init__(
        self, stream: Stream, core: ClientCore, endpoint: Endpoint, limits: TransportLimits
    ) -> None:
        """Take the stream over; it is closed when that fails.

        Raises: OSError, RuntimeError when this machine has no descriptors or threads left.
        """
        self.bytes_received = 0
        self._stream = stream
        self._core = core
        self._endpoint = endpoint
        self._limits = limits
        self._changed = threading.Condition()
        self._outbox = Outbox(stream)
        self._flushing = False
        self._waiters = Waiters(endpoint)
        self._pulse = Pulse(limits, self._outbox, self._waiters)
        self._cause: str | None = None
        try:
            self._wake_reader, self._wake_writer = socket.socketpair()
        except OSError:
            stream.close()
            raise
        stream.settimeout(0)
        self._threads = [
            threading.Thread(target=self._guard, args=(loop,), name=name, daemon=True)
            for loop, name in (
                (self._send_loop, f"rpc-send-{endpoint}"),
                (self._receive_loop, f"rpc-receive-{endpoint}"),
            )
        ]
        self._n_running = len(self._threads)
        self._start()

    def _start(self) -> None:
        for started, thread in enumerate(self._threads):
            try:
                thread.start()
            except RuntimeError as error:
                self.fail(str(error))
                for _ in self._threads[started:]:
                    self._leave()
                raise

    @property
    def cause(self) -> str | None:
        """Why the connection is over, None while it is not."""
        return self._cause

    @property
    def bytes_sent(self) -> int:
        """Bytes given to the network so far."""
        return self._outbox.bytes_sent

    @property
    def n_failures(self) -> int:
        """How many requests the worker has said to have failed."""
        return self._waiters.n_failures

    def submit(
        self,
        message: Message,
        data: Body = b"",
        *,
        flush: bool = True,
        regardless: bool = False,
        on_failure: OnFailure | None = None,
    ) -> Future[ReplyBody] | None:
        """Send a request and the data behind it; return the future of its reply if it has one.
        Without `flush` the request may wait for the next one that is flushed. `regardless` of an
        earlier failure it is sent, and leaves that to the next one. A request without a reply may
        say what its own failure calls, in the receiver thread.

        Raises: DeviceLostError; whatever an earlier request without a reply failed with.
        """
        view = memoryview(data).cast("B")
        with self._changed:
            while self._outbox.n_bytes > self._limits.max_queued_bytes and self._cause is None:
                self._changed.wait()
            if self._cause is not None or self._core.has_failed:
                # The receiver thread may be about to say what exactly is wrong.
                cause = self._cause or self._describe("the worker broke the protocol")
                raise DeviceLostError(cause)
            error = None if regardless else self._waiters.take_failure()
            if error is not None:
                raise error
            if on_failure is not None:
                self._waiters.watch(self._core.n_requests, on_failure)
            frame, expected = self._core.request(message, len(view))
            future = self._waiters.add(expected)
            self._outbox.add(frame, view)
            if flush or future is not None or self._outbox.n_bytes > _MAX_HELD_BYTES:
                self._flush()
            self._outbox.own_the_rest(view)
            return future

    @property
    def position(self) -> int:
        """Where the next request begins: the bytes sent, and those that wait."""
        with self._changed:
            return self._outbox.bytes_sent + self._outbox.n_bytes

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
            if self._waiters or self._outbox.has_unsent:
                self._stream.abort_on_close()
            waiters = self._waiters.drop()
            self._outbox.clear()
            self._wake_writer.close()
            self._changed.notify_all()
        for waiter in waiters:
            waiter.future.set_exception(DeviceLostError(self._cause))

    def _is_over(self) -> bool:
        return self._cause is not None

    def _describe(self, cause: str) -> str:
        parts = [f"RPC worker {self._endpoint}: {cause}"]
        if (head := self._waiters.head) is not None:
            waited = time.monotonic() - head.since
            parts.append(
                f"while {len(self._waiters)} replies were due, first {head.command.name} "
                f"({head.size or 0} bytes, asked {waited:.1f} s ago)"
            )
        if self._outbox.n_bytes:
            parts.append(f"with {self._outbox.n_bytes} bytes not yet sent")
        return ", ".join(parts)

    def _flush(self) -> None:
        """Write what the socket takes without waiting, and leave the rest to the sender."""
        try:
            self._outbox.send_all()
        except OSError:
            log.debug("%s: the sender thread will report the failure", self._endpoint)
        self._flushing = self._outbox.has_unsent
        if self._flushing:
            self._changed.notify_all()

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
            self._leave()

    def _leave(self) -> None:
        """One thread less; the last one closes the socket."""
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
        poller, tick_ms = self._poller(select.POLLOUT), self._limits.tick_s * 1000
        while True:
            with self._changed:
                while not self._flushing and self._cause is None:
                    self._changed.wait()
            if self._is_over():
                return
            ready = poller.poll(tick_ms)
            with self._changed:
                if self._is_over():
                    return
                if ready:
                    self._outbox.send_some()
                    self._flushing = self._outbox.has_unsent
                    self._changed.notify_all()
                else:
                    self._check_stall("the worker does not take the bytes sent to it")

    def _receive_loop(self) -> None:
        poller, tick_ms = self._poller(select.POLLIN), self._limits.tick_s * 1000
        while not self._is_over():
            if not (self._stream.has_data or poller.poll(tick_ms)):
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
            self._pulse.heard_at = time.monotonic()
            while (reply := self._core.next_reply()) is not None:
                self._resolve(reply)

    def _resolve(self, reply: Reply) -> None:
        with self._changed:
            if self._is_over():
                return
            tell = self._waiters.settle(reply)
        tell()

    def _check_stall(self, what: str) -> None:
        if (silence_s := self._pulse.silence_s) is not None:
            self.fail(f"{what}, for {silence_s:g} s")

    def _ask_for_life(self) -> None:
        """Send a ping when nothing has been under way for a while; stock workers know none."""
        with self._changed:
            if not (self._core.is_extended and self._pulse.is_idle):
                return
        try:
            self.submit(Ping(0))
        except LlamaServeError as error:
            log.debug("%s: no ping: %s", self._endpoint, error)

    def _last_words(self) -> str:
        failed = self._waiters.failed
        return "" if failed is None else f" after a failure ({failed})"
