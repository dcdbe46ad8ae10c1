"""What our own two ends say to each other beyond the protocol of llama.cpp. All of it is here.

**How it begins.** A worker's reply to HELLO has a padding byte that stock peers send as 0 and do
not look at. Ours puts `Announced` bits there. A client that knows them sends EXTEND, and from its
reply on the conversation is extended; a client that does not is a stock one and never meets
anything of this module. Commands from 128 on exist only in an extended conversation, and stock
workers never receive them.

**Revisions.** EXTEND carries the revision of each end; the lower one of both is spoken. Commands
and fields are added with a new revision and never change their meaning afterwards.

**Errors.** In an extended conversation a failing command does not end it. Its reply, or when it has
none a message between two replies, is an error frame: size field with the top bit set and the rest
the length, then `ERROR_HEAD` (the number of the failing request, counted from the first one after
EXTEND, and a code of `ErrorCode`) and the reason in UTF-8. Requests after the failing one are
carried out. Only what breaks the framing itself, or a bug, still ends the conversation, after its
error frame.

**A secret.** A worker that has one says `SECRET` and takes nothing but EXTEND and PROVE until the
client has shown that it knows it; a stock client cannot. Both ends prove it, first the client, so
that a worker shows nothing to strangers that a secret could be guessed by (`prove`): HMAC-SHA256
over who speaks, both nonces and, below TLS, the digest of the worker's certificate. So a
certificate that nobody signed is good enough when there is a secret. Without TLS the secret is
never visible, but what follows is. The key of the proofs is made of the secret by scrypt
(`proof_key`), once in a program, so that who sees a proof can try few secrets a second.

**TLS.** A worker with a certificate speaks TLS from the first byte, and says `TLS` to a client that
sends HELLO in plain, before it closes.

**Commands.**

| n | command | body | → response |
|---|---|---|---|
| 128 | EXTEND | revision u8, nonce u8[32] | revision u8, nonce u8[32] |
| 129 | PROVE | proof u8[32] | u8 (1 = right), then the worker's proof u8[32], or else zeros |
| 130 | PING | u64 | the same u64 |
| 131 | DEVICE_FACTS | device u32 | JSON of any length up to 64 KiB (`client/facts.py`) |
| 132 | WAIT_BUFFER | handle u64 | u8 (1: everything asked before that touches the buffer is done) |
| 133 | OPEN_DOOR | | key u8[16] |
| 134 | PUSH_TENSOR | tensor, offset, size, sequence u64, port u32, host char[64], key u8[16] | |
| 135 | DELIVER | key u8[16], sequence u64, data | |
| 136 | TAKE_DELIVERY | tensor, offset, size, sequence u64 | |

**Events.** Our worker reads on while its devices compute: a request waits for the graphs that touch
the buffers that it touches, and for no others. So the reply to an unrelated request says nothing
about a graph before it; WAIT_BUFFER's does.

**Pushes.** A tensor goes from worker A straight to worker B. The main host asks B for the key of
its door (OPEN_DOOR), tells A to push under a number that it chooses (PUSH_TENSOR) and B to take
what comes under that number (TAKE_DELIVERY). A reads the bytes behind the graph that makes them,
connects to B, begins an extended conversation of its own, proves its own secret where it has one,
and leaves the bytes at the door (DELIVER); B writes them, ahead of the graphs that it is asked to
run afterwards. At most 64 MiB go at once. So a worker connects to hosts that its client names, in
an extended conversation and, where it has a secret, only for clients that know it. A key is random
and good for one session. When A says that it could not push, the main host leaves an empty delivery
in its place, over a connection of its own since the other may be busy waiting; B stops waiting. A
leaves them itself for what it has not delivered when the main host's connection to it ends.

**All-reduce.** The connection that rank 1 of a group makes to rank 0 has the stock form between
workers that have neither a secret nor TLS. Where both have TLS it begins with a handshake, in which
rank 0 shows its certificate. Where both have a secret, next each sends a nonce u8[32]; then rank 1,
and when that was right rank 0, a proof u8[32] as of PROVE, with rank 1's nonce in the place of the
client's. The stock form follows. Who fails is dropped, and rank 0 waits on for the right one.
"""

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Final

from app.rpc_backend.wire.tensor import WireTensor

REVISION: Final = 1
_LABEL: Final = b"llama-serve rpc 1"
_SCRYPT_N: Final = 1 << 15
_SCRYPT_BYTES: Final = 1 << 26
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
NO_PROOF: Final = bytes(PROOF_BYTES)
KEY_BYTES: Final = 16
HOST_BYTES: Final = 64
MAX_PUSH_BYTES: Final = 64 * 1024 * 1024
"""Most that goes from worker to worker at once."""

FIRST_EXTENSION: Final = 128
"""Commands from here on are ours."""

ERROR_BIT: Final = 1 << 63
ERROR_HEAD: Final = struct.Struct("<QB")
MAX_ERROR_BYTES: Final = 4096
MAX_TEXT_BYTES: Final = 64 * 1024
"""Longest reply of a command that answers with text."""


class Announced(IntFlag):
    """What a worker says of itself in HELLO's padding byte."""

    EXTENDED = 1
    SECRET = 2
    TLS = 4


class ErrorCode(IntEnum):
    """Why a command failed; numbers that a client does not know count as `INTERNAL`."""

    PROTOCOL = 1
    GRAPH = 2
    UNSUPPORTED = 3
    MEMORY = 4
    DEVICE = 5
    INTERNAL = 6


class Speaker(IntEnum):
    """Whose proof it is, so that one end's cannot be sent back as the other's."""

    CLIENT = 1
    WORKER = 2
    RANK_0 = 3
    RANK_1 = 4


@dataclass(frozen=True, slots=True)
class Extend:
    """Begin an extended conversation."""

    revision: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class ExtendReply:
    """The worker's revision and nonce."""

    revision: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Prove:
    """Show that the client knows the secret."""

    proof: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ProveReply:
    """Whether that was right (1) and, if it was, the proof that the worker knows it too."""

    is_right: int
    proof: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask for a sign of life; the reply repeats the value."""

    value: int


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Ask what a device really is; the reply is JSON."""

    device: int


@dataclass(frozen=True, slots=True)
class WaitBuffer:
    """Ask to be told when everything asked before that touches a buffer is done."""

    buffer: int


@dataclass(frozen=True, slots=True)
class OpenDoor:
    """Ask for the key under which other workers leave deliveries for this session."""


@dataclass(frozen=True, slots=True)
class DoorReply:
    """The key; the same one each time."""

    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PushTensor:
    """Send `size` bytes of a tensor from `offset` on to a door of another worker."""

    tensor: WireTensor
    offset: int
    size: int
    sequence: int
    port: int
    host: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Deliver:
    """Leave the data behind this at the door with this key, under a number."""

    key: bytes = field(repr=False)
    sequence: int


@dataclass(frozen=True, slots=True)
class TakeDelivery:
    """Write a delivery of `size` bytes into a tensor from `offset` on."""

    tensor: WireTensor
    offset: int
    size: int
    sequence: int


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """A request of this number failed; `code` may be one that is not known here."""

    request: int
    code: int
    text: str


def pack_error(error: ErrorReply) -> bytes:
    """Frame an error; a long reason is cut."""
    text = error.text.encode("utf-8", "replace")[: MAX_ERROR_BYTES - ERROR_HEAD.size]
    body = ERROR_HEAD.pack(error.request, error.code) + text
    return struct.pack("<Q", ERROR_BIT | len(body)) + body


def unpack_error(body: bytes | bytearray) -> ErrorReply:
    """Read the body of an error frame, which must be at least `ERROR_HEAD` long; the reason is fit
    for a terminal.
    """
    request, code = ERROR_HEAD.unpack_from(body)
    text = body[ERROR_HEAD.size :].decode("utf-8", "replace")
    return ErrorReply(request, code, "".join(c if c.isprintable() else "\ufffd" for c in text))


def proof_key(secret: bytes) -> bytes:
    """Return the key that proofs of a shared secret are made with; takes a tenth of a second."""
    return hashlib.scrypt(
        secret, salt=_LABEL, n=_SCRYPT_N, r=8, p=1, maxmem=_SCRYPT_BYTES, dklen=32
    )


def prove(
    key: bytes, speaker: Speaker, client_nonce: bytes, worker_nonce: bytes, certificate: bytes
) -> bytes:
    """Return the proof that `speaker` has the key; `certificate` is the sha256 of the worker's
    certificate, empty without TLS.
    """
    said = bytes([speaker]) + client_nonce + worker_nonce + certificate
    return hmac.digest(key, _LABEL + said, "sha256")
