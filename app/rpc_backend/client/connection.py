"""A worker as its devices see it: requests and replies by type, and what they share.

All devices of one endpoint use one connection, because stock workers serve one at a time. The lock
keeps "which graphs are kept" in step with the order of requests on the wire.
"""

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakKeyDictionary

from app.errors import DeviceLostError
from app.rpc_backend.client.endpoint import Endpoint
from app.rpc_backend.client.handshake import shake_hands
from app.rpc_backend.client.kept_graphs import KeptGraphs
from app.rpc_backend.client.pulse import TransportLimits
from app.rpc_backend.client.route import Route
from app.rpc_backend.client.secure import Trust
from app.rpc_backend.client.transport import Transport
from app.rpc_backend.client.waiters import OnFailure, ReplyBody
from app.rpc_backend.streams.settings import ClientTls
from app.rpc_backend.wire.constants import (
    HASH_THRESHOLD_BYTES,
    MIN_HASHED_BYTES,
    ProtocolVersion,
)
from app.rpc_backend.wire.extensions import DoorReply, OpenDoor, Ping
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.wire.messages import Message

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How to treat workers. Weights of `hash_threshold_bytes` and more are offered by hash first;
    None is what a stock client does towards stock workers, and much less towards our own.

    With a `secret` (its `proof_key`) only workers that know it are used; with `tls` only those that
    speak TLS.
    """

    connect_timeout_s: float = 5.0
    limits: TransportLimits = field(default_factory=TransportLimits)
    hash_threshold_bytes: int | None = None
    secret: bytes | None = field(default=None, repr=False)
    tls: ClientTls | None = None


class WorkerConnection:
    """One open connection; closed when the last of its devices is."""

    def __init__(self, endpoint: Endpoint, settings: ClientSettings) -> None:
        """Connect and exchange HELLO.

        Raises: DeviceLostError, VersionMismatchError, ConfigError.
        """
        trust = Trust(settings.secret, settings.tls)
        stream, core = shake_hands(endpoint, settings.connect_timeout_s, trust)
        assert core.version is not None
        self.endpoint = endpoint
        self.settings = settings
        self.routes: WeakKeyDictionary[WorkerConnection, Route] = WeakKeyDictionary()
        """What goes from this worker straight to others."""
        self.version: ProtocolVersion = core.version
        self.lock = threading.RLock()
        self.is_extended = core.is_extended
        self._kept = KeptGraphs(core.version.major)
        self._n_failures_seen = 0
        self.hash_threshold_bytes = _threshold(settings, is_own=self.is_extended)
        try:
            self._transport = Transport(stream, core, endpoint, settings.limits)
        except (OSError, RuntimeError) as error:
            raise DeviceLostError(f"RPC worker {endpoint}: not opened: {error}") from None
        self._n_users = 0
        self._door: bytes | None = None
        self._n_deliveries = 0

    @property
    def bytes_sent(self) -> int:
        """Bytes given to the network so far."""
        return self._transport.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes that came back so far."""
        return self._transport.bytes_received

    @property
    def position(self) -> int:
        """Where the next request begins, in bytes sent."""
        return self._transport.position

    def wait_sent(self, position: int, timeout_s: float) -> None:
        """Wait until `bytes_sent` reaches `position`, for a while at most."""
        self._transport.wait_sent(position, timeout_s)

    @property
    def cause(self) -> str | None:
        """Why the connection is over, None while it is not."""
        return self._transport.cause

    @property
    def kept(self) -> KeptGraphs:
        """Which graphs the worker has, as far as can be told: after a failure none. Hold `lock`."""
        n_failures = self._transport.n_failures
        if n_failures != self._n_failures_seen:
            self._n_failures_seen = n_failures
            self._kept.forget_all()
        return self._kept

    def ping(self, timeout_s: float | None = None) -> float:
        """Return the seconds that a worker of our own needs to answer a sign of life.

        Raises: DeviceLostError.
        """
        began = time.monotonic()
        self.call(Ping(0), Ping, timeout_s)
        return time.monotonic() - began

    def tell(
        self,
        message: Message,
        data: Body = b"",
        *,
        flush: bool = True,
        regardless: bool = False,
        on_failure: OnFailure | None = None,
    ) -> None:
        """Send a request that has no reply; see `Transport.submit`.

        Raises: DeviceLostError; unless it goes `regardless`, what a worker of our own says of a
        request before it.
        """
        self._transport.submit(
            message, data, flush=flush, regardless=regardless, on_failure=on_failure
        )

    def ask_bytes(self, message: Message) -> Future[bytes]:
        """Send a request that reads a tensor.

        Raises: DeviceLostError, from the call or from the future.
        """
        return self.ask(message, bytes)

    def ask(self, message: Message, expect: type[R]) -> Future[R]:
        """Send a request whose reply is of class `expect`, and do not wait.

        Raises: DeviceLostError, from the call or from the future.
        """
        future: Future[R] = Future()
        future.set_running_or_notify_cancel()
        reply = self._transport.submit(message)
        assert reply is not None
        reply.add_done_callback(lambda done: _pass_on(done, future, expect))
        return future

    def call(self, message: Message, expect: type[R], timeout_s: float | None = None) -> R:
        """Send a request and wait for its reply of class `expect`.

        Raises: DeviceLostError, also when there is no reply after `timeout_s` seconds; what a
        worker of our own says about this request, or about one without a reply before it.
        """
        future = self._transport.submit(message)
        assert future is not None
        try:
            reply = future.result(timeout_s)
        except TimeoutError:
            name = type(message).__name__
            self._transport.fail(f"{name} was not answered within {timeout_s:g} s")
            reply = future.result()
        assert isinstance(reply, expect)
        return reply

    def next_delivery(self) -> tuple[bytes, int]:
        """Return the key of the door at which other workers leave deliveries for this connection,
        and a number that no delivery has had; only workers of our own have one.

        Raises: DeviceLostError; what a worker of our own says of a request before it.
        """
        with self.lock:
            if self._door is None:
                self._door = self.call(OpenDoor(), DoorReply).key
            self._n_deliveries += 1
            return self._door, self._n_deliveries

    def retain(self) -> None:
        """Count one more device."""
        with self.lock:
            self._n_users += 1

    def release(self) -> bool:
        """Count one device less; the last one closes the connection. Return whether that was it."""
        with self.lock:
            self._n_users -= 1
            if self._n_users > 0:
                return False
        self.close()
        return True

    def close(self) -> None:
        """End the connection; the worker frees everything that belongs to it."""
        self._transport.close()


def _pass_on(done: Future[ReplyBody], future: Future[R], expect: type[R]) -> None:
    error = done.exception()
    if error is not None:
        future.set_exception(error)
        return
    body = done.result()
    if isinstance(body, expect):
        future.set_result(body)
    else:
        future.set_exception(DeviceLostError(f"expected {expect.__name__}, got {body!r}"))


def _threshold(settings: ClientSettings, *, is_own: bool) -> int:
    if settings.hash_threshold_bytes is not None:
        return settings.hash_threshold_bytes
    return MIN_HASHED_BYTES if is_own else HASH_THRESHOLD_BYTES
