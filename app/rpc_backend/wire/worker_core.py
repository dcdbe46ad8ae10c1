"""The worker's half of a conversation, without a socket.

Used as h11 is: bytes go in through `writable()` and `wrote()`, `next_request()` returns one request
after the other or None when more bytes are needed, and `reply()` returns the bytes to send. The
first request must be HELLO; every other rule is a row of `commands.COMMANDS`. After a
RemoteProtocolError the conversation is over. `extend()` begins an extended conversation, in which
`error()` answers a request that failed (`extensions.py`). Not thread-safe.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final

from app.rpc_backend.errors import LocalProtocolError, RemoteProtocolError
from app.rpc_backend.wire.commands import Command, Raw, Tail, command_by_number
from app.rpc_backend.wire.constants import CHUNK_BYTES, Cmd
from app.rpc_backend.wire.extensions import ErrorReply, pack_error
from app.rpc_backend.wire.framing import REQUEST_HEADER, RESPONSE_HEADER, ReceiveBuffer
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.wire.messages import Message

_PARSED_PER_BYTE: Final = 8
"""Bytes that a byte of a graph's description takes with the objects that are made of it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the data behind a request: bytes `at` to `at + len(data)` of `total`."""

    at: int
    total: int
    data: Body

    @property
    def is_last(self) -> bool:
        """Whether the request is complete with this piece."""
        return self.at + len(self.data) == self.total


@dataclass(frozen=True, slots=True)
class Request:
    """One request, or for a request with data one piece of it; `number` counts the requests of an
    extended conversation.
    """

    command: Command
    message: Message
    chunk: Chunk | None = None
    number: int = 0


class _State(Enum):
    HELLO = "waiting for HELLO"
    LOCKED = "waiting for the proof of the secret"
    OPEN = "open"
    FAILED = "failed"


class WorkerCore:
    """Reads requests and frames replies in one protocol version; one that is `locked` takes nothing
    but the proof of a secret until `unlock()`.
    """

    def __init__(self, version: int, *, locked: bool = False) -> None:
        self.version = version
        self.is_extended = False
        self._locked = locked
        self._n_requests = 0
        self._buffer = ReceiveBuffer()
        self._state = _State.HELLO
        self._command: Command | None = None
        self._remaining = 0
        self._message: Message | None = None
        self._total = 0
        self._owed: deque[Command] = deque()

    @property
    def is_open(self) -> bool:
        """Whether HELLO was read, the secret proved and nothing has gone wrong."""
        return self._state is _State.OPEN

    def extend(self) -> None:
        """Begin an extended conversation with the next request."""
        self.is_extended = True
        self._n_requests = 0

    def unlock(self) -> None:
        """Take every request from now on."""
        if self._state is _State.LOCKED:
            self._state = _State.OPEN

    @property
    def has_only_greeted(self) -> bool:
        """Whether the client has said HELLO and nothing more."""
        return self.is_open and not self.is_extended and self._n_requests == 1

    @property
    def is_between_requests(self) -> bool:
        """Whether nothing of a next request has arrived."""
        return self._command is None and not self._buffer.n_unread

    @property
    def footprint(self) -> int:
        """Bytes of memory that a body may take until it is understood."""
        is_graph = self._command is not None and self._command.tail is Tail.GRAPH
        return self._buffer.n_claimed * (_PARSED_PER_BYTE if is_graph else 1)

    @property
    def position(self) -> str:
        """Where the conversation stands, for a message about its end."""
        if self._command is None:
            n = self._buffer.n_unread
            where = "between requests" if self._state is _State.OPEN else self._state.value
            return f"{where}, {n} bytes of a request read" if n else where
        return f"in {self._command.number.name}, {self._remaining} bytes missing"

    def writable(self) -> memoryview:
        """Return where the next bytes from the socket belong."""
        return self._buffer.writable()

    def wrote(self, n: int) -> None:
        """Count `n` bytes that the socket put there."""
        self._buffer.wrote(n)

    def next_request(self) -> Request | None:
        """Return the next request or piece, None when more bytes are needed.

        Raises: RemoteProtocolError; the conversation is over then.
        """
        if self._state is _State.FAILED:
            raise LocalProtocolError("the conversation is over")
        try:
            return self._next()
        except RemoteProtocolError:
            self._state = _State.FAILED
            raise

    def reply(self, message: Message) -> bytes:
        """Frame the reply to the oldest request that awaits one.

        Raises: LocalProtocolError when none does.
        """
        command = self._pop_owed()
        if command.response is None or isinstance(command.response, Raw):
            raise LocalProtocolError(f"{command.number.name}: expected a reply of bytes")
        body = command.response.pack(message)
        return RESPONSE_HEADER.pack(len(body)) + body

    def reply_header(self, size: int) -> bytes:
        """Frame a reply of `size` bytes, which the caller sends itself.

        Raises: LocalProtocolError when the oldest request does not await bytes.
        """
        command = self._pop_owed()
        if not isinstance(command.response, Raw):
            raise LocalProtocolError(f"{command.number.name}: expected a message, not bytes")
        return RESPONSE_HEADER.pack(size)

    def error(self, request: Request | None, code: int, text: str) -> bytes:
        """Frame the failure of a request, in the place of its reply if it has one; that reply must
        be the next. None stands for a request that could not be read.
        """
        if request is None:
            return pack_error(ErrorReply(self._n_requests, code, text))
        if request.command.response is not None:
            self._owed.popleft()
        return pack_error(ErrorReply(request.number, code, text))

    def _pop_owed(self) -> Command:
        if not self._owed:
            raise LocalProtocolError("no request awaits a reply")
        return self._owed.popleft()

    def _next(self) -> Request | None:
        if self._command is None:
            header = self._buffer.take(REQUEST_HEADER.size)
            if header is None:
                return None
            number, size = REQUEST_HEADER.unpack(header)
            self._command = self._admit(number, size)
            self._remaining = size
        return self._read_body(self._command)

    def _admit(self, number: int, size: int) -> Command:
        """Check a header against the table and the state before anything of the body is read."""
        command = command_by_number(number, self.version)
        if command is None:
            raise RemoteProtocolError(
                f"command {number}: not in protocol version {self.version}, size field {size}"
            )
        name = command.number.name
        if (command.number is Cmd.HELLO) != (self._state is _State.HELLO):
            raise RemoteProtocolError(f"{name}: expected HELLO first and once")
        self._admit_extension(command)
        limit = command.max_bytes
        if size < command.request.size or (limit is not None and size > limit):
            expected = f"{command.request.size} bytes"
            if limit != command.request.size:
                expected += " or more" if limit is None else f" to {limit}"
            raise RemoteProtocolError(f"{name}: body of {size} bytes: expected {expected}")
        return command

    def _admit_extension(self, command: Command) -> None:
        number = command.number
        if number is Cmd.EXTEND:
            if self.is_extended:
                raise RemoteProtocolError("EXTEND: expected it once")
        elif command.is_extension and not self.is_extended:
            raise RemoteProtocolError(f"{number.name}: expected EXTEND before it")
        elif self._state is _State.LOCKED and number is not Cmd.PROVE:
            raise RemoteProtocolError(
                f"{number.name}: refused: this worker has a secret, and the client has not proved "
                "that it knows it (a stock client cannot)"
            )

    def _read_body(self, command: Command) -> Request | None:
        if command.tail is Tail.DATA:
            return self._read_chunk(command)
        body = self._read(self._remaining)
        if body is None:
            return None
        try:
            message = command.request.unpack(body)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{command.number.name}: {error}") from None
        return self._finish(Request(command, message, None, self._n_requests))

    def _read_chunk(self, command: Command) -> Request | None:
        if self._message is None:
            fixed = self._buffer.take(command.request.size)
            if fixed is None:
                return None
            self._message = command.request.unpack(fixed)
            self._remaining -= len(fixed)
            self._total = self._remaining
        data = self._read(min(self._remaining, CHUNK_BYTES))
        if data is None:
            return None
        chunk = Chunk(self._total - self._remaining, self._total, data)
        request = Request(command, self._message, chunk, self._n_requests)
        self._remaining -= len(data)
        return request if self._remaining else self._finish(request)

    def _read(self, n: int) -> Body | None:
        return self._buffer.take(0) if n == 0 else self._buffer.fill(n)

    def _finish(self, request: Request) -> Request:
        command = request.command
        self._command = self._message = None
        self._remaining = 0
        self._n_requests += 1
        if command.number is Cmd.HELLO:
            self._state = _State.LOCKED if self._locked else _State.OPEN
        if command.response is not None:
            self._owed.append(command)
        return request
