"""The client's half of a conversation, without a socket.

`request()` checks that the worker's version has the request, returns the bytes to send and notes
which reply is due; replies come back in the order of their requests, so that any number may be
under way. Bytes from the socket go in through `writable()` and `wrote()`; `next_reply()` returns
one reply after the other. After `extend()` a reply may also be the failure of a request, with or
without a reply of its own (`extensions.py`). Sending and receiving may be two threads, each of them
one at a time.
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
from app.rpc_backend.wire.extensions import (
    ERROR_BIT,
    ERROR_HEAD,
    MAX_ERROR_BYTES,
    MAX_TEXT_BYTES,
    Announced,
    ErrorReply,
    unpack_error,
)
from app.rpc_backend.wire.framing import REQUEST_HEADER, RESPONSE_HEADER, ReceiveBuffer
from app.rpc_backend.wire.messages import GetTensor, GetTensor2D, Hello, HelloReply, Message


@dataclass(frozen=True, slots=True)
class Expected:
    """A reply that is due, its size in bytes, None for one of any length, and the number of its
    request.
    """

    command: Command
    size: int | None
    number: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply: a message, or for a command that reads its bytes; or the failure of a request,
    whose command is None when no reply was due.
    """

    command: Command | None
    body: Message | bytearray


class ClientCore:
    """Frames requests and reads replies in the version that the worker's HELLO named."""

    def __init__(self) -> None:
        self.version: ProtocolVersion | None = None
        self.announced = Announced(0)
        self.is_extended = False
        self._buffer = ReceiveBuffer()
        self._expected: deque[Expected] = deque()
        self._n_requests = 0
        self._size: int | None = None
        self._is_error = False
        self._failed = False

    @property
    def n_requests(self) -> int:
        """The number that the next request will have."""
        return self._n_requests

    @property
    def has_failed(self) -> bool:
        """Whether the worker broke the protocol, after which nothing can be asked."""
        return self._failed

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

    def extend(self) -> None:
        """Begin an extended conversation; EXTEND was answered."""
        self.is_extended = True
        self._n_requests = 0

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
        if command.is_extension and command.number is not Cmd.EXTEND and not self.is_extended:
            raise LocalProtocolError(f"{command.number.name}: the worker does not know it")
        frame = self._frame(command, message, n_data)
        return frame, self._expected[-1] if command.response is not None else None

    def _frame(self, command: Command, message: Message, n_data: int) -> bytes:
        body = command.request.pack(message)
        if command.response is not None:
            size = _reply_bytes(command, message)
            self._expected.append(Expected(command, size, self._n_requests))
        self._n_requests += 1
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
        if self._size is None and not self._read_size():
            return None
        assert self._size is not None
        data = self._buffer.fill(self._size, trusted=True) if self._size else bytearray()
        if data is None:
            return None
        self._size = None
        if self._is_error:
            return self._failure(unpack_error(data))
        command = self._expected.popleft().command
        return Reply(command, self._parse(command, data))

    def _read_size(self) -> bool:
        """Read the size field of what comes next, and check it against what is due."""
        if not (self._expected or self.is_extended):
            if self._buffer.n_unread:
                raise RemoteProtocolError("bytes from the worker while no reply is due")
            return False
        header = self._buffer.take(RESPONSE_HEADER.size)
        if header is None:
            return False
        (size,) = RESPONSE_HEADER.unpack(header)
        self._is_error = self.is_extended and bool(size & ERROR_BIT)
        self._size = self._error_size(size) if self._is_error else self._reply_size(size)
        return True

    def _error_size(self, size: int) -> int:
        size &= ~ERROR_BIT
        if not ERROR_HEAD.size <= size <= MAX_ERROR_BYTES:
            raise RemoteProtocolError(
                f"error frame of {size} bytes: expected {ERROR_HEAD.size} to {MAX_ERROR_BYTES}"
            )
        return int(size)

    def _reply_size(self, size: int) -> int:
        if not self._expected:
            raise RemoteProtocolError(f"reply of {size} bytes while none is due")
        due = self._expected[0]
        fits = size <= MAX_TEXT_BYTES if due.size is None else size == due.size
        if not fits:
            expected = f"at most {MAX_TEXT_BYTES}" if due.size is None else due.size
            raise RemoteProtocolError(
                f"reply to {due.command.number.name}: size field {size}: expected {expected}"
            )
        return size

    def _failure(self, error: ErrorReply) -> Reply:
        """Match a failure with the reply that is due, if it stands in the place of one."""
        if self._expected and self._expected[0].number == error.request:
            return Reply(self._expected.popleft().command, error)
        limit = self._expected[0].number if self._expected else self._n_requests
        if error.request >= limit:
            raise RemoteProtocolError(
                f"failure of request {error.request}: expected one of the {limit} before"
            )
        return Reply(None, error)

    def _parse(self, command: Command, data: bytearray) -> Message | bytearray:
        if command.response is None or isinstance(command.response, Raw):
            return data
        message = command.response.unpack(data)
        if isinstance(message, HelloReply):
            self.version = _agree(message)
            self.announced = Announced(message.padding)
        return message


def _reply_bytes(command: Command, message: Message) -> int | None:
    if command.response is Raw.TEXT:
        return None
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
