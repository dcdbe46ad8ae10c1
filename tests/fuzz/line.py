"""A hostile client's connection to a worker's process: greeting, doors, frames; plain or TLS, with
the socket below it in reach.
"""

import socket
import ssl
import struct
import time
from contextlib import suppress

from app.rpc_backend.streams.base import Stream
from app.rpc_backend.streams.context import client_context
from app.rpc_backend.streams.plain import PlainStream
from app.rpc_backend.streams.settings import ClientTls
from app.rpc_backend.streams.tls import TlsStream
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.commands import command_of
from app.rpc_backend.wire.framing import REQUEST_HEADER
from app.rpc_backend.wire.tensor import Place
from tests.fuzz.caller import Room
from tests.fuzz.dice import Dice

TIMEOUT_S = 60.0
_HELLO_BYTES = 36
_HOST = "127.0.0.1"


class Line:
    """A connection that has just been made."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection((_HOST, port), timeout=TIMEOUT_S)
        self.key = bytes(x.KEY_BYTES)
        self._stream: Stream = PlainStream(self.sock)

    def secure(self) -> None:
        """Go on in TLS.

        Raises: OSError.
        """
        stream = TlsStream(self.sock, client_context(ClientTls(), has_secret=True), _HOST)
        stream.handshake(time.monotonic() + TIMEOUT_S)
        self._stream = stream

    def sendall(self, data: bytes) -> None:
        """Send everything."""
        self._stream.sendall(data)

    def read(self, size: int) -> bytes:
        """Receive so many bytes.

        Raises: ConnectionError when the worker closes before.
        """
        view, at = memoryview(bytearray(size)), 0
        while at < size:
            n = self._stream.recv_into(view[at:])
            if n == 0:
                raise ConnectionResetError("closed by the worker")
            at += n
        return bytes(view)

    def drain(self) -> None:
        """Say that nothing more comes and read until the worker has closed."""
        self.sock.shutdown(socket.SHUT_WR)
        while self.sock.recv(1 << 16):
            pass

    def close(self) -> None:
        """Go."""
        self.sock.close()

    def hello(self) -> None:
        """Say HELLO."""
        self.sendall(frame(m.Hello()))
        self.read(_HELLO_BYTES)

    def extend(self, dice: Dice, secret: bytes | None) -> None:
        """Begin an extended conversation and open a door; now and then prove something wrong.

        Raises: OSError, also for having proved something wrong.
        """
        nonce = dice.randbytes(x.NONCE_BYTES)
        self.sendall(frame(x.Extend(x.REVISION, nonce)))
        reply = self.read(8 + 1 + x.NONCE_BYTES)
        if secret is not None:
            theirs = reply[9 : 9 + x.NONCE_BYTES]
            digest = self._stream.certificate_digest
            proof = x.prove(secret, x.Speaker.CLIENT, nonce, theirs, digest)
            is_wrong = dice.chance(0.15)
            self.sendall(frame(x.Prove(dice.randbytes(x.PROOF_BYTES) if is_wrong else proof)))
            assert self.read(9 + x.PROOF_BYTES)[8] == (not is_wrong), "a proof was judged wrongly"
            if is_wrong:
                raise ConnectionResetError("shut out")
        self.sendall(frame(x.OpenDoor()))
        self.key = self.read(8 + x.KEY_BYTES)[8:]

    def take(self, size: int) -> Room:
        """Make a buffer."""
        self.sendall(frame(m.AllocBuffer(0, size)))
        handle, _ = struct.unpack("<QQ", self.read(24)[8:])
        self.sendall(frame(m.BufferGetBase(handle)))
        (base,) = struct.unpack("<Q", self.read(16)[8:])
        return Room(Place(handle, base), size)


def frame(message: m.Message, data: bytes = b"") -> bytes:
    """Frame a request of version 8."""
    command = command_of(message)
    body = command.request.pack(message)
    return REQUEST_HEADER.pack(command.number, len(body) + len(data)) + body + data


def wild_handshake(dice: Dice) -> bytes:
    """Return what a TLS client might begin with, were it drunk."""
    if dice.chance(0.3):
        return b"\x16" + dice.randbytes(dice.randrange(600))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = client_context(ClientTls(), has_secret=True)
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=_HOST).do_handshake()
    greeting = dice.damaged(outgoing.read())
    return greeting + (dice.randbytes(99) if dice.chance(0.5) else b"")
