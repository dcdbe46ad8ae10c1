"""The client's way to TLS, or past it.

Told to speak TLS it never falls back to plain: whoever sits in between could make it do so.
"""

import socket
import time
from dataclasses import dataclass, field

from app.errors import ConfigError, DeviceLostError
from app.rpc_backend.client.endpoint import Endpoint
from app.rpc_backend.streams.base import Stream
from app.rpc_backend.streams.plain import PlainStream
from app.rpc_backend.streams.settings import ClientTls


@dataclass(frozen=True, slots=True)
class Trust:
    """How a worker shows who it is: by TLS, by a secret, by both or not at all."""

    secret: bytes | None = field(default=None, repr=False)
    tls: ClientTls | None = None


def open_stream(sock: socket.socket, endpoint: Endpoint, trust: Trust, deadline: float) -> Stream:
    """Return the stream of a connected socket, after the TLS handshake if there is to be one.

    Raises: DeviceLostError naming the endpoint and what is wrong with its certificate or its TLS;
    ConfigError. The socket is closed then.
    """
    if trust.tls is None:
        return PlainStream(sock)
    from app.rpc_backend.streams.context import client_context, handshake_failure
    from app.rpc_backend.streams.tls import TlsStream

    try:
        context = client_context(trust.tls, has_secret=trust.secret is not None)
        stream = TlsStream(sock, context, endpoint.host)
        stream.handshake(deadline)
    except OSError as error:
        sock.close()
        failure = handshake_failure(error, trust.tls.flag)
        raise DeviceLostError(f"RPC worker {endpoint}: {failure}") from None
    except ValueError as error:
        sock.close()
        raise DeviceLostError(
            f"RPC worker {endpoint}: no certificate can be for this host: {error}"
        ) from None
    except ConfigError:
        sock.close()
        raise
    return stream


def remaining(deadline: float) -> float:
    """Return the seconds until `deadline`, never 0, which would mean not to wait at all."""
    return max(deadline - time.monotonic(), 0.001)
