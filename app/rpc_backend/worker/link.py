"""The direct connection between the two workers of a group, once there is one (`meeting.py`).

First comes its greeting: TLS and proofs where the workers have them (`seal.py`), then, as between
stock workers, 24 bytes of capabilities each (zeros: plain TCP), rank 1's first; from then on there
is nothing but raw data, whose length both know. Every wait ends: when bytes move, when none have
for a time limit, or when the client that asked for the group has left. Used by the thread that
serves that client.
"""

import hmac
import logging
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from app.rpc_backend.errors import GroupError
from app.rpc_backend.rdma import decline
from app.rpc_backend.streams.context import reason
from app.rpc_backend.streams.plain import tune
from app.rpc_backend.streams.tls import TlsStream
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire.constants import CAPABILITY_BYTES, PLAIN_TCP
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.worker.seal import Seal

log = logging.getLogger(__name__)

TICK_S: Final = 0.25

_SPEAKERS: Final = (x.Speaker.RANK_0, x.Speaker.RANK_1)

Waits = Iterator[int]
"""Something that goes on without waiting; between its steps it says what to poll the link for."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """How long rank 0 waits for rank 1, rank 1 tries to connect, and either may see no byte move
    while the other still computes.
    """

    listen_s: float = 10.0
    connect_s: float = 5.0
    stall_s: float = 600.0


class Link:
    """A connection to the other rank; `greeting` comes first."""

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        limits: LinkLimits,
        has_left: Callable[[], bool],
        seal: Seal,
        host: str | None = None,
    ) -> None:
        """`host` is how rank 1 calls rank 0, None at rank 0; the link owns the socket.

        Raises: GroupError; the socket is closed then.
        """
        self.name = name
        self._limits = limits
        self._has_left = has_left
        self._secret = seal.secret
        self._rank = int(host is not None)
        try:
            sock.setblocking(False)
            tune(sock)
            self._stream = seal.wrap(sock, host)
        except OSError as error:
            sock.close()
            raise self._broken(error) from None
        except GroupError:
            sock.close()
            raise

    def fileno(self) -> int:
        """Return what can be polled."""
        return self._stream.fileno()

    def greeting(self) -> Waits:
        """Find out whether the other end is the other rank.

        Raises: GroupError; the connection is closed then.
        """
        done = False
        try:
            if isinstance(self._stream, TlsStream):
                yield from self._shake_hands(self._stream)
            if self._secret is not None:
                yield from self._prove(self._secret)
            theirs = bytearray(CAPABILITY_BYTES)
            if self._rank == 1:
                yield from self._sending(PLAIN_TCP)
            yield from self._receiving(memoryview(theirs))
            if self._rank == 0:
                yield from self._sending(PLAIN_TCP)
            decline(self.name, bytes(theirs))
            done = True
        finally:
            if not done:
                self.close()

    def greet(self) -> None:
        """Go through the greeting, waiting.

        Raises: GroupError; the connection is closed then.
        """
        deadline = time.monotonic() + self._limits.connect_s
        for events in self.greeting():
            self._wait_for(events, max(deadline - time.monotonic(), 0), self._limits.connect_s)

    def send(self, data: Body) -> None:
        """Send all of `data`.

        Raises: GroupError.
        """
        for events in self._sending(data):
            self._wait_for(events, self._limits.stall_s, self._limits.stall_s)

    def receive_into(self, view: memoryview) -> None:
        """Fill `view`.

        Raises: GroupError.
        """
        for events in self._receiving(view):
            self._wait_for(events, self._limits.stall_s, self._limits.stall_s)

    @property
    def is_broken(self) -> bool:
        """Whether the other worker has gone or said something unasked; nothing is due."""
        try:
            self._stream.recv_into(memoryview(bytearray(1)))
        except BlockingIOError:
            return False
        except OSError:
            log.debug("%s: the connection is broken", self.name)
        return True

    def close(self) -> None:
        """End the connection."""
        self._stream.close()

    def _wait_for(self, events: int, timeout_s: float, limit_s: float) -> None:
        """Wait in steps, so that a client that leaves does not leave a thread behind."""
        poller = select.poll()
        poller.register(self._stream.fileno(), events)
        deadline = time.monotonic() + timeout_s
        while not poller.poll(max(min(TICK_S, deadline - time.monotonic()), 0) * 1000):
            if self._has_left():
                raise GroupError(f"waiting for {self.name}: the client left")
            if time.monotonic() >= deadline:
                raise GroupError(f"waiting for {self.name}: nothing within {limit_s:g} s")

    def _shake_hands(self, stream: TlsStream) -> Waits:
        is_done = False
        while not is_done:
            try:
                is_done = stream.go_on_with_handshake()
            except BlockingIOError:
                yield select.POLLOUT if stream.has_unsent else select.POLLIN
            except OSError as error:
                raise self._broken(error) from None

    def _prove(self, secret: bytes) -> Waits:
        """Exchange nonces, then proofs, that of rank 1 first: it chose whom to connect to, and rank
        0 shows nothing to strangers.
        """
        own, theirs = secrets.token_bytes(x.NONCE_BYTES), bytearray(x.NONCE_BYTES)
        yield from self._sending(own)
        yield from self._receiving(memoryview(theirs))
        first, second = (own, bytes(theirs)) if self._rank == 1 else (bytes(theirs), own)
        proofs = [
            x.prove(secret, speaker, first, second, self._stream.certificate_digest)
            for speaker in _SPEAKERS
        ]
        if self._rank == 1:
            yield from self._sending(proofs[1])
        shown = bytearray(x.PROOF_BYTES)
        yield from self._receiving(memoryview(shown))
        if not hmac.compare_digest(shown, proofs[1 - self._rank]):
            raise GroupError(f"{self.name} does not know this worker's secret")
        if self._rank == 0:
            yield from self._sending(proofs[0])

    def _sending(self, data: Body) -> Waits:
        view = memoryview(data).cast("B")
        while view or self._stream.has_unsent:
            try:
                view = view[self._stream.send([view] if view else []) :]
            except BlockingIOError:
                yield select.POLLOUT
            except OSError as error:
                raise self._broken(error) from None

    def _receiving(self, view: memoryview) -> Waits:
        while view:
            try:
                n = self._stream.recv_into(view)
            except BlockingIOError:
                yield select.POLLIN
                continue
            except OSError as error:
                raise self._broken(error) from None
            if n == 0:
                raise GroupError(f"{self.name} closed the connection, {len(view)} bytes missing")
            view = view[n:]

    def _broken(self, error: OSError) -> GroupError:
        return GroupError(f"{self.name}: the connection broke: {reason(error)}")
