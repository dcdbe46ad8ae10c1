"""The RPC server: accepts clients and gives each a thread and a session of its own.

Clients do not see each other: each has its own buffers and graphs, and devices run one graph at a
time. The accept loop never waits for a client, so short-lived connections, stalled ones and many at
once cost nobody else anything; when too many are open, the one that has been idle longest and holds
no memory makes room. `stop()` may be called from any thread and from a signal handler.
"""

import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.devices.base import Device
from app.errors import ConfigError
from app.rpc_backend.streams.context import worker_certificate
from app.rpc_backend.streams.plain import tune
from app.rpc_backend.streams.settings import ClientTls, ServerTls
from app.rpc_backend.wire.constants import NEWEST
from app.rpc_backend.worker.access import Access
from app.rpc_backend.worker.all_reduce import Groups
from app.rpc_backend.worker.allowed import Network, is_allowed
from app.rpc_backend.worker.budget import Budget
from app.rpc_backend.worker.link import LinkLimits
from app.rpc_backend.worker.mail import DELIVERY_TIMEOUT_S, Mail
from app.rpc_backend.worker.mailbox import Mailboxes
from app.rpc_backend.worker.outgoing import Dial
from app.rpc_backend.worker.peer import Peer
from app.rpc_backend.worker.refusals import PERIOD_S, Refusals
from app.rpc_backend.worker.seal import Seal
from app.rpc_backend.worker.session import Session
from app.rpc_backend.worker.tensor_store import TensorStore

log = logging.getLogger(__name__)

_BACKLOG: Final = 128
_STOP_TIMEOUT_S: Final = 3.0
_ACCEPT_PAUSE_S: Final = 0.1
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How the worker treats its clients. With a `secret` only those that know it are served, with
    `tls` only those that speak TLS, with `allowed` only those at its addresses. Other workers have
    to be of the same kind; `trust` says whose certificates are good. `dial` connects to another
    worker that a client names, None to refuse that; a delivery from one is waited for
    `delivery_timeout_s`.
    """

    version: int = NEWEST
    cache: TensorStore | None = None
    max_clients: int = 256
    hello_timeout_s: float = 10.0
    link_limits: LinkLimits = field(default_factory=LinkLimits)
    secret: bytes | None = field(default=None, repr=False)
    tls: ServerTls | None = None
    trust: ClientTls = field(default_factory=ClientTls)
    allowed: tuple[Network, ...] = ()
    dial: Dial | None = None
    delivery_timeout_s: float = DELIVERY_TIMEOUT_S


def bind(host: str, port: int) -> socket.socket:
    """Take a port (0 for any free one) without opening it yet.

    Raises: ConfigError when the address is unknown or the port is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host}: the name is unknown ({error})") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{host}:{port}: {error.strerror}: expected a free port of this machine"
        ) from None
    return listener


class RpcServer:
    """Serves `devices` on a bound socket; owned by the thread that calls `serve()`."""

    def __init__(
        self,
        listener: socket.socket,
        devices: Sequence[Device],
        settings: ServerSettings | None = None,
    ) -> None:
        """Open the socket to clients.

        Raises: ConfigError when the certificate cannot be used.
        """
        self._listener = listener
        self._devices = devices
        self._settings = settings or ServerSettings()
        tls = self._settings.tls
        self._tls = None if tls is None else worker_certificate(tls)
        self._budget = Budget(devices)
        self._mailboxes = Mailboxes(self._budget)
        self._refusals = Refusals()
        self._peers: set[Peer] = set()
        self._lock = threading.Lock()
        self._stopping = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_writer.setblocking(False)
        listener.setblocking(False)
        listener.listen(_BACKLOG)

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return int(self._listener.getsockname()[1])

    @property
    def n_clients(self) -> int:
        """Number of connected clients."""
        with self._lock:
            return len(self._peers)

    def serve(self) -> bool:
        """Accept clients until `stop()`, then cut off those that are left; return whether all have
        gone, which a client in the middle of a long computation has not.
        """
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ)
        selector.register(self._wake_reader, selectors.EVENT_READ)
        try:
            while not self._stopping:
                ready = {key.fileobj for key, _ in selector.select(PERIOD_S)}
                if self._listener in ready and not self._stopping:
                    self._accept()
                self._refusals.sum_up()
        finally:
            selector.close()
            self._listener.close()
            self._wake_reader.close()
            self._wake_writer.close()
        return self._cut_off_all()

    def stop(self) -> None:
        """Make `serve()` return."""
        self._stopping = True
        try:
            self._wake_writer.send(b"x")
        except OSError:
            log.debug("the server has stopped already")

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._refuse("a client could not be accepted: %s", error.strerror)
            if error.errno in _SHORTAGES:
                self._make_room("out of file descriptors")
            # The listener stays ready.
            threading.Event().wait(_ACCEPT_PAUSE_S)
            return
        host, port = address[:2]
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if not is_allowed(host, self._settings.allowed):
            self._refuse("%s: refused: its address is not in --allow", name)
            sock.close()
            return
        if self.n_clients >= self._settings.max_clients and not self._make_room("too many clients"):
            self._refuse("%s: refused: there are %d clients already", name, self.n_clients)
            sock.close()
            return
        self._start(sock, name)

    def _start(self, sock: socket.socket, name: str) -> None:
        settings = self._settings
        access = Access(settings.secret, demands_tls=self._tls is not None)
        session = Session(
            self._devices, settings.version, settings.cache, name, access, self._budget
        )
        peer = Peer(
            sock, name, session, self._tls, settings.hello_timeout_s, self._forget, self._refusals
        )
        here = self._listener.getsockname()[0]
        session.state.lanes.on_failure = peer.tell_failures
        seal = Seal(settings.secret, self._tls, settings.trust)
        session.state.groups = Groups(
            here, settings.link_limits, peer.has_left, settings.allowed, seal
        )
        session.state.mail = Mail(
            self._mailboxes,
            settings.dial,
            peer.has_left,
            settings.delivery_timeout_s,
            budget=self._budget,
        )
        try:
            sock.setblocking(True)
            tune(sock)
            with self._lock:
                self._peers.add(peer)
            peer.thread.start()
        except (OSError, RuntimeError) as error:
            self._refuse("%s: not served: %s", name, error)
            self._forget(peer)
            sock.close()

    def _refuse(self, text: str, *values: object) -> None:
        self._refusals.tell(logging.WARNING, text, *values)

    def _make_room(self, reason: str) -> bool:
        """Cut off the client that has been idle longest, of those that are not through the greeting
        or else, unless they have proved a secret, of those without memory here.
        """
        with self._lock:
            idle = [peer for peer in self._peers if not peer.holds_buffers]
            if self._settings.secret is not None:
                idle = [peer for peer in idle if not peer.is_admitted]
            if not idle:
                return False
            oldest = min(idle, key=lambda peer: (peer.is_admitted, peer.last_active_at))
            self._peers.discard(oldest)
        oldest.stop(f"cut off: {reason}")
        return True

    def _forget(self, peer: Peer) -> None:
        with self._lock:
            self._peers.discard(peer)

    def _cut_off_all(self) -> bool:
        with self._lock:
            peers = list(self._peers)
        for peer in peers:
            peer.stop("the worker stops")
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for peer in peers:
            peer.thread.join(max(deadline - time.monotonic(), 0))
        left = [peer for peer in peers if peer.thread.is_alive()]
        for peer in left:
            log.warning("%s: still computing, left behind", peer.name)
        self._refusals.sum_up(early=True)
        return not left
