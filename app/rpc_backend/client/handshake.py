"""Connect to a worker and agree on the protocol version, within a time limit.

A worker that accepts the connection but leaves HELLO unanswered is almost always a stock one that
serves somebody else, since those take one client at a time; the error says so.
"""

import socket
import time

from app.errors import DeviceLostError
from app.rpc_backend.client.endpoint import Endpoint, abort_on_close, connect
from app.rpc_backend.errors import RemoteProtocolError, VersionMismatchError
from app.rpc_backend.wire.client_core import ClientCore


def shake_hands(endpoint: Endpoint, timeout_s: float) -> tuple[socket.socket, ClientCore]:
    """Return a connected socket and the core that has read the worker's HELLO.

    Raises: DeviceLostError; VersionMismatchError naming both versions.
    """
    deadline = time.monotonic() + timeout_s
    sock = connect(endpoint, deadline)
    core = ClientCore()
    try:
        _exchange_hello(sock, core, deadline)
    except VersionMismatchError as error:
        sock.close()
        raise VersionMismatchError(f"RPC worker {endpoint}: {error}") from None
    except RemoteProtocolError as error:
        sock.close()
        raise DeviceLostError(
            f"RPC worker {endpoint}: this is no RPC server, or one of another age: {error}"
        ) from None
    except TimeoutError:
        abort_on_close(sock)
        sock.close()
        raise DeviceLostError(
            f"RPC worker {endpoint}: connected, but HELLO was not answered within {timeout_s:g} s: "
            "the worker serves another client (stock workers take one at a time), "
            "or it is no RPC server"
        ) from None
    except OSError as error:
        sock.close()
        raise DeviceLostError(
            f"RPC worker {endpoint}: the connection broke during HELLO: {error.strerror or error}"
        ) from None
    return sock, core


def _exchange_hello(sock: socket.socket, core: ClientCore, deadline: float) -> None:
    sock.settimeout(max(deadline - time.monotonic(), 0.001))
    sock.sendall(core.hello())
    while core.next_reply() is None:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        n = sock.recv_into(core.writable())
        if n == 0:
            raise RemoteProtocolError("it closed the connection instead of answering HELLO")
        core.wrote(n)
