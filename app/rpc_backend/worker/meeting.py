"""How the two workers of a group find each other: rank 0 listens, rank 1 connects.

Rank 0 greets whoever connects, several at once, since strangers may be slow or silent: one who
fails or leaves is dropped, and the first who is through is rank 1. Used by the thread that serves
the client that asked for the group.
"""

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from app.rpc_backend.errors import GroupError
from app.rpc_backend.worker.allowed import Network, is_allowed
from app.rpc_backend.worker.link import TICK_S, Link, LinkLimits, Waits
from app.rpc_backend.worker.refusals import Refusals
from app.rpc_backend.worker.seal import STOCK_FORM, Seal

_MAX_TRIES: Final = 100
_RETRY_S: Final = 0.05

_MAX_GUESTS: Final = 16
"""Most who are greeted at once; one more costs the one who came first."""


def accept_link(
    host: str,
    port: int,
    limits: LinkLimits,
    has_left: Callable[[], bool],
    allowed: Sequence[Network] = (),
    seal: Seal = STOCK_FORM,
) -> Link:
    """Listen on one address and port until the other worker connects, from an allowed address.

    Raises: GroupError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_MAX_GUESTS)
    except OSError as error:
        raise GroupError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    with listener:
        listener.setblocking(False)
        reception = _Reception(listener, limits, has_left, allowed, seal)
        try:
            return reception.first_through(f"rank 1 to connect to {host} port {port}")
        finally:
            reception.close()


class _Reception:
    """Rank 0's port while it waits for rank 1."""

    def __init__(
        self,
        listener: socket.socket,
        limits: LinkLimits,
        has_left: Callable[[], bool],
        allowed: Sequence[Network],
        seal: Seal,
    ) -> None:
        self._listener = listener
        self._limits = limits
        self._has_left = has_left
        self._allowed = allowed
        self._seal = seal
        self._guests: dict[int, tuple[Link, Waits]] = {}
        self._last_refusal = ""
        self._refusals = Refusals()
        self._poller = select.poll()
        self._poller.register(listener, select.POLLIN)

    def first_through(self, what: str) -> Link:
        """Wait for `what`.

        Raises: GroupError.
        """
        deadline = time.monotonic() + self._limits.listen_s
        while True:
            left_s = max(min(TICK_S, deadline - time.monotonic()), 0)
            for number, _ in self._poller.poll(left_s * 1000):
                if number == self._listener.fileno():
                    self._welcome()
                elif number in self._guests and (link := self._go_on(number)) is not None:
                    return link
            if self._has_left():
                raise GroupError(f"waiting for {what}: the client left")
            if time.monotonic() >= deadline:
                limit = f"nothing within {self._limits.listen_s:g} s"
                raise GroupError(f"waiting for {what}: {limit}{self._last_refusal}")

    def close(self) -> None:
        """Send away who is left."""
        for number in list(self._guests):
            self._drop(number).close()
        self._refusals.sum_up(early=True)

    def _welcome(self) -> None:
        try:
            sock, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of file descriptors, most likely: pause, since the listener stays ready.
            self._refuse(error.strerror or str(error))
            time.sleep(_RETRY_S)
            return
        name = f"rank 1 at {address[0]}"
        if not is_allowed(address[0], self._allowed):
            sock.close()
            self._refuse(f"{name}: not in --allow")
            return
        if len(self._guests) >= _MAX_GUESTS:
            self._drop(next(iter(self._guests))).close()
            self._refuse("others, too many at once")
        try:
            link = Link(sock, name, self._limits, self._has_left, self._seal)
        except GroupError as error:
            self._refuse(str(error))
            return
        self._guests[link.fileno()] = (link, link.greeting())
        self._poller.register(link.fileno(), select.POLLIN | select.POLLOUT)

    def _go_on(self, number: int) -> Link | None:
        """Go on with a guest's greeting; return it when that is done."""
        try:
            self._poller.modify(number, next(self._guests[number][1]))
        except StopIteration:
            return self._drop(number)
        except GroupError as error:
            self._drop(number)
            self._refuse(str(error))
        return None

    def _drop(self, number: int) -> Link:
        self._poller.unregister(number)
        return self._guests.pop(number)[0]

    def _refuse(self, cause: str) -> None:
        self._last_refusal = f"; the last who came: {cause}"
        self._refusals.tell(logging.INFO, f"somebody else came to a group's port: {cause}")


def open_link(
    host: str,
    port: int,
    limits: LinkLimits,
    has_left: Callable[[], bool],
    seal: Seal = STOCK_FORM,
) -> Link:
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
                link = Link(sock, f"rank 0 at {host}", limits, has_left, seal, host)
                link.greet()
                return link
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
