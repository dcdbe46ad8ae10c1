"""The client's half of a conversation, without a socket.

`request()` checks that the worker's version has the request, returns the bytes to send and notes
which reply is due; replies come back in the order of their requests, so that any number may be
under way. Bytes from the socket go in through `writable()` and `wrote()`; `next_reply()` returns
one reply after the other. Sending and receiving may be two threads, each of them one at a time.
"""

from collections import deque
from dataclasses import dataclass

from app.rpc_backend.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    VersionMismatchError,
)
from app.rpc_backend.wire.commands import Command, Raw, Tail, command_of
from app.rpc_backend.wire.constants import VERSIONS, Cmd, ProtocolVersion
from app.rpc_backend.wire.framing import REQUEST_HEADER, RESPONSE_HEADER, ReceiveBuffer
from app.rpc_backend.wire.messages import GetTensor, GetTensor2D, Hello, HelloReply, Message


@dataclass(frozen=True, slots=True)
class Expected:
    """A reply that is due, and its size in bytes."""

    command: Command
    size: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply: a message, or for a command that reads a tensor its bytes."""

    command: Command
    body: Message | bytearray


class ClientCore:
    """Frames requests and reads replies in the version that the worker's HELLO named."""

    def __init__(self) -> None:
        self.version: ProtocolVersion | None = None
        self._buffer = ReceiveBuffer()
        self._expected: deque[Expected] = deque()
        self._size_known = False
        self._failed = False

    @property
    def n_expected(self) -> int:
        """Number of replies that are due."""
        return len(self._expected)

    @property
    def next_expected(self) -> Expected | None:
        """The reply that is due next."""
        return self._expected[0] if self._expected else None

    def hello(self) -> bytes:
        """Return the first request; it offers plain TCP."""
        if self.version is not None or self._expected:
            raise LocalProtocolError("HELLO: expected once and first")
        return self._frame(command_of(Hello()), Hello(), 0)

    def request(self, message: Message, n_data: int = 0) -> tuple[bytes, Expected | None]:
        """Return the bytes that go before `n_data` bytes of data, and the reply that is now due.

        Raises: LocalProtocolError before HELLO is answered, after a failure, and for a request
        that the worker's version does not have.
        """
        if self.version is None or self._failed:
            raise LocalProtocolError(f"{type(message).__name__}: the connection is not open")
        command = command_of(message, self.version.major)
        if command.number is Cmd.HELLO or (n_data and command.tail is not Tail.DATA):
            raise LocalProtocolError(f"{command.number.name}: not allowed here")
        frame = self._frame(command, message, n_data)
        return frame, self._expected[-1] if command.response is not None else None

    def _frame(self, command: Command, message: Message, n_data: int) -> bytes:
        body = command.request.pack(message)
        if command.response is not None:
            self._expected.append(Expected(command, _reply_bytes(command, message)))
        return REQUEST_HEADER.pack(command.number, len(body) + n_data) + body

    def writable(self) -> memoryview:
        """Return where the next bytes from the socket belong."""
        return self._buffer.writable()

    def wrote(self, n: int) -> None:
        """Count `n` bytes that the socket put there."""
        self._buffer.wrote(n)

    def next_reply(self) -> Reply | None:
        """Return the next reply, None when more bytes are needed.

        Raises: RemoteProtocolError, VersionMismatchError; the conversation is over then.
        """
        if self._failed:
            raise LocalProtocolError("the conversation is over")
        try:
            return self._next()
        except (RemoteProtocolError, VersionMismatchError):
            self._failed = True
            raise

    def _next(self) -> Reply | None:
        if not self._expected:
            if self._buffer.take(1) is not None:
                raise RemoteProtocolError("bytes from the worker while no reply is due")
            return None
        command, size = self._expected[0].command, self._expected[0].size
        if not self._size_known and not self._read_size(command, size):
            return None
        data = self._buffer.fill(size, trusted=True) if size else bytearray()
        if data is None:
            return None
        self._size_known = False
        self._expected.popleft()
        return Reply(command, self._parse(command, data))

    def _read_size(self, command: Command, expected: int) -> bool:
        header = self._buffer.take(RESPONSE_HEADER.size)
        if header is None:
            return False
        (size,) = RESPONSE_HEADER.unpack(header)
        if size != expected:
            raise RemoteProtocolError(
                f"reply to {command.number.name}: size field {size}: expected {expected}"
            )
        self._size_known = True
        return True

    def _parse(self, command: Command, data: bytearray) -> Message | bytearray:
        if command.response is None or isinstance(command.response, Raw):
            return data
        message = command.response.unpack(data)
        if isinstance(message, HelloReply):
            self.version = _agree(message)
        return message


def _reply_bytes(command: Command, message: Message) -> int:
    if isinstance(message, GetTensor | GetTensor2D):
        return message.reply_bytes
    if command.response is None or isinstance(command.response, Raw):
        raise LocalProtocolError(f"{command.number.name}: the size of its reply is not known")
    return command.response.size


def _agree(hello: HelloReply) -> ProtocolVersion:
    """Check a worker's version by the rule of the stock client: equal major, minor not higher."""
    theirs = ProtocolVersion(hello.major, hello.minor, hello.patch)
    ours = VERSIONS.get(theirs.major)
    if ours is None or theirs.minor > ours.minor:
        known = " and ".join(str(version) for version in VERSIONS.values())
        raise VersionMismatchError(
            f"the worker speaks RPC protocol {theirs}, this program speaks {known}"
        )
    return theirs
