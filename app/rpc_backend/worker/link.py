"""A direct TCP connection between the two workers of a group.

Rank 0 listens, rank 1 connects, both say 24 bytes of capabilities (zeros: plain TCP); from then on
there is nothing but raw data, whose length both know. Every wait ends: when bytes move, when none
have for a time limit, or when the client that asked for the group has left. Used by the thread that
serves that client.
"""

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from app.rpc_backend.errors import GroupError
from app.rpc_backend.rdma import decline
from app.rpc_backend.streams.plain import tune
from app.rpc_backend.wire.constants import CAPABILITY_BYTES, PLAIN_TCP
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.worker.allowed import Network, is_allowed

log = logging.getLogger(__name__)

_MAX_TRIES: Final = 100
_RETRY_S: Final = 0.05
_TICK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """How long rank 0 waits for rank 1, rank 1 tries to connect, and either may see no byte move
    while the other still computes.
    """

    listen_s: float = 10.0
    connect_s: float = 5.0
    stall_s: float = 600.0


def accept_link(
    host: str,
    port: int,
    limits: LinkLimits,
    has_left: Callable[[], bool],
    allowed: Sequence[Network] = (),
) -> "Link":
    """Listen on one address and port until the other worker connects, from an allowed address.

    Raises: GroupError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1)
    except OSError as error:
        raise GroupError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    with listener:
        listener.setblocking(False)
        wait = _Wait(has_left, f"rank 1 to connect to {host} port {port}")
        wait.until_ready(listener, select.POLLIN, limits.listen_s)
        try:
            sock, address = listener.accept()
        except OSError as error:
            raise GroupError(f"rank 1 was lost while it connected: {error.strerror}") from None
    if not is_allowed(address[0], allowed):
        sock.close()
        raise GroupError(f"rank 1 at {address[0]}: not in --allow")
    link = Link(sock, f"rank 1 at {address[0]}", limits, has_left)
    return link.greet(is_first=False)


def open_link(host: str, port: int, limits: LinkLimits, has_left: Callable[[], bool]) -> "Link":
    """Connect to the other worker, which may not be listening yet.

    Raises: GroupError.
    """
    deadline = time.monotonic() + limits.connect_s
    addresses, cause = _look_up(host, port, limits.connect_s)
    for _ in range(_MAX_TRIES):
        for address in addresses:
            left = deadline - time.monotonic()
            if left <= 0 or has_left():
                break
            try:
                sock = socket.create_connection(address, left)
            except OSError as error:
                cause = str(error)
                continue
            if sock.getsockname() != sock.getpeername():
                return Link(sock, f"rank 0 at {host}", limits, has_left).greet(is_first=True)
            # Nobody listens, and the system chose the very port that is called for this end.
            sock.close()
        if not addresses or has_left() or time.monotonic() >= deadline:
            break
        time.sleep(min(_RETRY_S, max(deadline - time.monotonic(), 0)))
    raise GroupError(f"cannot connect to rank 0 at {host} port {port}: {cause}")


def _look_up(host: str, port: int, timeout_s: float) -> tuple[list[tuple[str, int]], str]:
    """Return a name's addresses, or none and why; the system's own limit can be minutes."""
    answer: Future[list[tuple[str, int]]] = Future()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            unique = dict.fromkeys((str(row[4][0]), port) for row in found)
            answer.set_result(list(unique))
        except (OSError, UnicodeError) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name=f"look-up-{host}", daemon=True).start()
    try:
        return answer.result(timeout_s), "nothing listens there"
    except (OSError, UnicodeError) as error:
        return [], str(error) or f"no answer from the name service within {timeout_s:g} s"


@dataclass(frozen=True, slots=True)
class _Wait:
    """Waits for a socket, in steps, so that a client that leaves does not leave a thread behind."""

    has_left: Callable[[], bool]
    what: str

    def until_ready(self, sock: socket.socket, events: int, timeout_s: float) -> None:
        poller = select.poll()
        poller.register(sock, events)
        deadline = time.monotonic() + timeout_s
        while not poller.poll(max(min(_TICK_S, deadline - time.monotonic()), 0) * 1000):
            if self.has_left():
                raise GroupError(f"waiting for {self.what}: the client left")
            if time.monotonic() >= deadline:
                raise GroupError(f"waiting for {self.what}: nothing within {timeout_s:g} s")


class Link:
    """The connection once it stands."""

    def __init__(
        self, sock: socket.socket, name: str, limits: LinkLimits, has_left: Callable[[], bool]
    ) -> None:
        self.name = name
        self._sock = sock
        self._stall_s = limits.connect_s
        self._limits = limits
        self._wait = _Wait(has_left, name)
        sock.setblocking(False)
        tune(sock)

    def greet(self, *, is_first: bool) -> "Link":
        """Exchange capabilities, in the order of the ranks.

        Raises: GroupError; the connection is closed then.
        """
        theirs = bytearray(CAPABILITY_BYTES)
        try:
            if is_first:
                self.send(PLAIN_TCP)
            self.receive_into(memoryview(theirs))
            if not is_first:
                self.send(PLAIN_TCP)
        except GroupError:
            self.close()
            raise
        decline(self.name, bytes(theirs))
        self._stall_s = self._limits.stall_s
        return self

    def send(self, data: Body) -> None:
        """Send all of `data`.

        Raises: GroupError.
        """
        view = memoryview(data).cast("B")
        while view:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                self._wait.until_ready(self._sock, select.POLLOUT, self._stall_s)
            except OSError as error:
                raise self._broken(error) from None

    def receive_into(self, view: memoryview) -> None:
        """Fill `view`.

        Raises: GroupError.
        """
        while view:
            try:
                n = self._sock.recv_into(view)
            except BlockingIOError:
                self._wait.until_ready(self._sock, select.POLLIN, self._stall_s)
                continue
            except OSError as error:
                raise self._broken(error) from None
            if n == 0:
                raise GroupError(f"{self.name} closed the connection, {len(view)} bytes missing")
            view = view[n:]

    @property
    def is_broken(self) -> bool:
        """Whether the other worker has gone or said something unasked; nothing is due."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            log.debug("%s: the connection is broken", self.name)
        return True

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def _broken(self, error: OSError) -> GroupError:
        return GroupError(f"{self.name}: the connection broke: {error.strerror or error}")
