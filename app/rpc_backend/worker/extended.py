"""Handlers of the commands that only our own ends know (`wire/extensions.py`), and the codes under
which failures are told.
"""

import hmac
import json
import secrets
from typing import Final

from app.errors import (
    DeviceLostError,
    GraphError,
    LlamaServeError,
    OutOfMemoryError,
    UnsupportedError,
)
from app.rpc_backend.errors import DeliveryError, GroupError, RemoteProtocolError
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.worker.state import ClientState
from app.version import BUILD_INFO

_CODES: Final = (
    (RemoteProtocolError, x.ErrorCode.PROTOCOL),
    (GraphError, x.ErrorCode.GRAPH),
    (UnsupportedError, x.ErrorCode.UNSUPPORTED),
    (OutOfMemoryError, x.ErrorCode.MEMORY),
    (DeviceLostError, x.ErrorCode.DEVICE),
    (GroupError, x.ErrorCode.DEVICE),
    (DeliveryError, x.ErrorCode.DEVICE),
)


def error_code(error: LlamaServeError) -> x.ErrorCode:
    """Return the code under which a client is told of an error."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return x.ErrorCode.INTERNAL


def extend(state: ClientState, message: x.Extend) -> x.ExtendReply:
    """Begin an extended conversation; with a secret, one that the client has to prove first."""
    if message.revision < 1:
        raise RemoteProtocolError(f"revision {message.revision}: expected 1 or more")
    nonce, access = secrets.token_bytes(x.NONCE_BYTES), state.access
    if access.secret is not None:
        said = (message.nonce, nonce, access.certificate)
        state.proofs = (
            x.prove(access.secret, x.Speaker.CLIENT, *said),
            x.prove(access.secret, x.Speaker.WORKER, *said),
        )
    return x.ExtendReply(x.REVISION, nonce)


def prove(state: ClientState, message: x.Prove) -> x.ProveReply:
    """Check the client's proof and answer with this end's; a wrong one ends the conversation."""
    proofs, state.proofs = state.proofs, None
    if proofs is None:
        raise RemoteProtocolError("expected EXTEND before it, and a secret to prove")
    expected, own = proofs
    is_right = hmac.compare_digest(expected, message.proof)
    return x.ProveReply(int(is_right), own if is_right else x.NO_PROOF)


def ping(state: ClientState, message: x.Ping) -> x.Ping:
    """Give a sign of life."""
    return message


def device_facts(state: ClientState, message: x.DeviceFacts) -> bytes:
    """Say what a device is, as JSON (read by `client/facts.py`)."""
    device = state.device(message.device)
    info, memory = device.info, state.budget.memory(device)
    facts = {
        "name": info.name,
        "description": info.description,
        "kind": info.kind.value,
        "threads": info.threads,
        "free": memory.free,
        "total": memory.total,
        "ops": [op.name for op in sorted(device.ops())],
        "program": BUILD_INFO,
    }
    return json.dumps(facts).encode()
