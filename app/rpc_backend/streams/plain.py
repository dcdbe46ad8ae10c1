"""Bytes over TCP as they are: what every stock peer speaks."""

import logging
import socket
import struct
from collections.abc import Sequence
from typing import Final

from app.rpc_backend.wire.layout import Body

log = logging.getLogger(__name__)

_KEEP_ALIVE: Final = (
    ("TCP_KEEPIDLE", 60),
    ("TCP_KEEPALIVE", 60),
    ("TCP_KEEPINTVL", 20),
    ("TCP_KEEPCNT", 3),
)
"""Seconds and tries: what stays silent for two minutes is dead. A platform that lacks an option
keeps its own value; the second one is macOS's name of the first.
"""


class PlainStream:
    """A TCP connection; the contract is `base.Stream`."""

    certificate_digest = b""
    has_data = False
    has_unsent = False

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def fileno(self) -> int:
        """Return the socket's number."""
        return self._sock.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """Set how long each call may wait."""
        self._sock.settimeout(seconds)

    def send(self, parts: Sequence[memoryview]) -> int:
        """Send what one system call takes."""
        return self._sock.sendmsg(parts)

    def sendall(self, data: Body) -> None:
        """Send everything."""
        self._sock.sendall(data)

    def recv_into(self, room: memoryview) -> int:
        """Receive what is there."""
        return self._sock.recv_into(room)

    def abort_on_close(self) -> None:
        """Make closing a reset."""
        reset_on_close(self._sock)

    def shutdown(self) -> None:
        """End both directions."""
        shut(self._sock)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def tune(sock: socket.socket) -> None:
    """Let small messages leave at once, and have the system notice in minutes that the machine at
    the other end of an idle connection is gone.

    Raises: OSError when the connection is over already.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def reset_on_close(sock: socket.socket) -> None:
    """Make closing a socket a reset; see `base.Stream.abort_on_close`."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError as error:
        log.debug("the socket is gone already: %s", error.strerror)


def shut(sock: socket.socket) -> None:
    """End both directions of a socket, if that has not happened yet."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("the socket is disconnected already: %s", error.strerror)
