"""What a worker says went wrong, as the error that a local device would raise."""

from typing import Final

from app.errors import (
    DeviceLostError,
    GraphError,
    LlamaServeError,
    OutOfMemoryError,
    UnsupportedError,
)
from app.rpc_backend.client.endpoint import Endpoint
from app.rpc_backend.wire.extensions import ErrorCode, ErrorReply

_KINDS: Final[dict[int, type[LlamaServeError]]] = {
    ErrorCode.GRAPH: GraphError,
    ErrorCode.UNSUPPORTED: UnsupportedError,
    ErrorCode.MEMORY: OutOfMemoryError,
}


def failure(endpoint: Endpoint, reply: ErrorReply) -> LlamaServeError:
    """Return the error of a failed request; what only a new connection can mend is a
    DeviceLostError.
    """
    kind = _KINDS.get(reply.code, DeviceLostError)
    return kind(f"RPC worker {endpoint}: {reply.text}")
