"""The worker's door: from the first byte of a connection to its stream.

A TLS handshake begins with byte 22, a plain client's HELLO with 14. A plain client of a worker
that speaks TLS is let in as far as HELLO, whose reply tells it (`wire/extensions.py`), and then
sent away by its session; a TLS client of a plain worker only sees the connection end.
"""

import socket
import ssl
import time
from typing import Final

from app.errors import LlamaServeError
from app.rpc_backend.streams.base import Stream
from app.rpc_backend.streams.context import Certificate, reason
from app.rpc_backend.streams.plain import PlainStream
from app.rpc_backend.streams.tls import TlsStream

_TLS_HANDSHAKE: Final = b"\x16"


class NotAdmittedError(LlamaServeError):
    """A connection ended before there was a client; says why."""


def admit(sock: socket.socket, tls: Certificate | None, deadline: float) -> Stream | None:
    """Return the stream of a new connection, None when it ended without a byte; waits until
    `deadline` (monotonic seconds) at most.

    Raises: NotAdmittedError, TimeoutError, OSError.
    """
    sock.settimeout(remaining(deadline))
    first = sock.recv(1, socket.MSG_PEEK)
    if first != _TLS_HANDSHAKE:
        return PlainStream(sock) if first else None
    if tls is None:
        raise NotAdmittedError("refused: a client that speaks TLS; this worker has no --tls-cert")
    shown = tls.current()
    stream = TlsStream(sock, shown.context, own_digest=shown.digest)
    try:
        stream.handshake(deadline)
    except ssl.SSLError as error:
        raise NotAdmittedError(f"refused: the TLS handshake failed: {reason(error)}") from None
    except TimeoutError:
        raise NotAdmittedError("refused: the TLS handshake was not finished in time") from None
    return stream


def remaining(deadline: float) -> float:
    """Return the seconds until `deadline`.

    Raises: TimeoutError when it has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
