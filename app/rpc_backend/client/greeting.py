"""What follows HELLO with a worker of our own: EXTEND, and the proof of a shared secret.

A stock worker announces nothing and is left alone. Whoever gives a secret means it: a worker that
does not know it is refused, since it may be somebody else's.
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from app.errors import LlamaServeError
from app.rpc_backend.errors import RemoteProtocolError
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire.client_core import ClientCore
from app.rpc_backend.wire.messages import Message

Ask = Callable[[Message], Message]
"""Sends one request and returns its reply."""

_NOT_TRUSTED: Final = "expected it to prove that it knows the secret that this program was given"


class AccessRefusedError(LlamaServeError):
    """One end does not accept the other; says what to do about it."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The secret that both ends know, if there is one, and the sha256 of the worker's certificate
    as this end sees it, empty without TLS.
    """

    secret: bytes | None = field(default=None, repr=False)
    certificate: bytes = b""


def greet(ask: Ask, core: ClientCore, credentials: Credentials) -> None:
    """Begin an extended conversation with a worker that announced it.

    Raises: AccessRefusedError, RemoteProtocolError.
    """
    secret, announced = credentials.secret, core.announced
    if x.Announced.TLS in announced and not credentials.certificate:
        raise AccessRefusedError("it demands TLS: give --rpc-tls or --rpc-tls-ca")
    if x.Announced.SECRET in announced and secret is None:
        raise AccessRefusedError("it demands a secret: give --rpc-secret-file")
    if x.Announced.SECRET not in announced and secret is not None:
        raise AccessRefusedError(f"it has no secret, {_NOT_TRUSTED}: start it with --secret-file")
    if x.Announced.EXTENDED not in announced:
        if secret is not None:
            raise AccessRefusedError(f"it says that it has a secret and no more, {_NOT_TRUSTED}")
        return
    nonce = secrets.token_bytes(x.NONCE_BYTES)
    reply = ask(x.Extend(x.REVISION, nonce))
    assert isinstance(reply, x.ExtendReply)
    if reply.revision < 1:
        raise RemoteProtocolError(f"EXTEND: revision {reply.revision}: expected 1 or more")
    core.extend()
    if secret is not None:
        _prove(ask, secret, (nonce, reply.nonce, credentials.certificate))


def _prove(ask: Ask, secret: bytes, said: tuple[bytes, bytes, bytes]) -> None:
    """Give this end's proof and check the worker's before anything else is said."""
    reply = ask(x.Prove(x.prove(secret, x.Speaker.CLIENT, *said)))
    assert isinstance(reply, x.ProveReply)
    expected = x.prove(secret, x.Speaker.WORKER, *said)
    if not (reply.is_right and hmac.compare_digest(expected, reply.proof)):
        raise AccessRefusedError(f"its secret is another one, {_NOT_TRUSTED}")
