"""Connect to a worker and agree on the protocol version, extensions and secret, within a time
limit.

A worker that accepts the connection but leaves HELLO unanswered is almost always a stock one that
serves somebody else, since those take one client at a time; the error says so.
"""

import time
from collections.abc import Callable

from app.errors import DeviceLostError
from app.rpc_backend.client.endpoint import Endpoint, connect
from app.rpc_backend.client.greeting import AccessRefusedError, Credentials, greet
from app.rpc_backend.client.secure import Trust, open_stream, remaining
from app.rpc_backend.errors import RemoteProtocolError, VersionMismatchError
from app.rpc_backend.rdma import decline
from app.rpc_backend.streams.base import Stream
from app.rpc_backend.wire.client_core import ClientCore
from app.rpc_backend.wire.extensions import ErrorReply
from app.rpc_backend.wire.messages import HelloReply, Message


def shake_hands(
    endpoint: Endpoint, timeout_s: float, trust: Trust | None = None
) -> tuple[Stream, ClientCore]:
    """Return an open stream and the core that has read the worker's greeting.

    Raises: DeviceLostError; VersionMismatchError naming both versions; ConfigError.
    """
    deadline = time.monotonic() + timeout_s
    trust = trust or Trust()
    stream = open_stream(connect(endpoint, deadline), endpoint, trust, deadline)
    core = ClientCore()
    try:
        hello = _exchange(stream, core, core.hello(), deadline)
        if isinstance(hello, HelloReply):
            decline(f"RPC worker {endpoint}", hello.capabilities)
        credentials = Credentials(trust.secret, stream.certificate_digest)
        greet(_asker(stream, core, deadline), core, credentials)
    except VersionMismatchError as error:
        stream.close()
        raise VersionMismatchError(f"RPC worker {endpoint}: {error}") from None
    except AccessRefusedError as error:
        stream.close()
        raise DeviceLostError(f"RPC worker {endpoint}: {error}") from None
    except RemoteProtocolError as error:
        stream.close()
        raise DeviceLostError(
            f"RPC worker {endpoint}: this is no RPC server, or one of another age: {error}"
        ) from None
    except TimeoutError:
        stream.abort_on_close()
        stream.close()
        raise DeviceLostError(
            f"RPC worker {endpoint}: connected, but HELLO was not answered within {timeout_s:g} s: "
            "the worker serves another client (stock workers take one at a time), "
            "or it is no RPC server"
        ) from None
    except OSError as error:
        stream.close()
        raise DeviceLostError(
            f"RPC worker {endpoint}: the connection broke during HELLO: {error.strerror or error}"
        ) from None
    return stream, core


def _asker(stream: Stream, core: ClientCore, deadline: float) -> Callable[[Message], Message]:
    def ask(message: Message) -> Message:
        frame, _ = core.request(message)
        return _exchange(stream, core, frame, deadline)

    return ask


def _exchange(stream: Stream, core: ClientCore, frame: bytes, deadline: float) -> Message:
    """Send one request and read its reply."""
    stream.settimeout(remaining(deadline))
    stream.sendall(frame)
    while (reply := core.next_reply()) is None:
        stream.settimeout(remaining(deadline))
        n = stream.recv_into(core.writable())
        if n == 0:
            raise RemoteProtocolError("it closed the connection instead of answering")
        core.wrote(n)
    if isinstance(reply.body, ErrorReply):
        raise RemoteProtocolError(reply.body.text)
    return reply.body
