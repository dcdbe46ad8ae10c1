"""One client of a worker's session in this process, which looks at whatever comes back."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.devices.base import Device
from app.ggml.tensor import new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.commands import Raw, command_of
from app.rpc_backend.wire.framing import REQUEST_HEADER
from app.rpc_backend.wire.tensor import Place, WireTensor, to_wire
from app.rpc_backend.worker.access import OPEN, Access
from app.rpc_backend.worker.all_reduce import Groups
from app.rpc_backend.worker.link import LinkLimits
from app.rpc_backend.worker.mail import Mail
from app.rpc_backend.worker.mailbox import Mailboxes
from app.rpc_backend.worker.tensor_store import TensorStore
from tests.fuzz.census import Census, CountedSession

MAX_ANSWER: Final = 1 << 24
WAIT_S: Final = 0.05
"""How long a worker waits for others, who are on this machine."""

_SIZE: Final = struct.Struct("<Q")


class HasEndedError(Exception):
    """Nothing more can be asked: the worker waits for the rest of a request that is not whole."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What the sessions of one worker share."""

    devices: Sequence[Device]
    census: Census = field(default_factory=Census)
    store: TensorStore | None = None
    mailboxes: Mailboxes = field(default_factory=Mailboxes)


@dataclass(frozen=True, slots=True)
class Room:
    """A buffer that the client has."""

    place: Place
    size: int

    @property
    def whole(self) -> WireTensor:
        """All of it as one tensor."""
        return self.part(self.size)

    def part(self, size: int, at: int = 0) -> WireTensor:
        """Some bytes of it as a tensor."""
        tensor = new_tensor(GGMLType.I8, (size,), "bytes")
        return to_wire(tensor, Place(self.place.handle, (self.place.address + at) & (2**64 - 1)))


class Caller:
    """Sends requests and takes replies and error frames apart."""

    def __init__(self, worker: Worker, version: int, access: Access = OPEN) -> None:
        self.session = CountedSession(worker.devices, version, worker.store, "client", access)
        self.session.census = worker.census
        self.session.state.groups = Groups(limits=LinkLimits(WAIT_S, WAIT_S, WAIT_S))
        self.session.state.mail = Mail(worker.mailboxes, timeout_s=WAIT_S)
        self.n_errors = 0
        self.version = version
        self.call(m.Hello())

    def raw(self, data: bytes) -> list[bytes]:
        """Give bytes to the worker; return the replies in what it sends, without error frames.

        Raises: SessionError; AssertionError for an answer that is no answer.
        """
        pieces: list[bytes] = []
        size = 0
        while data:
            with self.session.writable() as room:
                n = min(len(room), len(data))
                room[:n] = data[:n]
            for piece in self.session.wrote(n):
                pieces.append(bytes(piece))
                size += len(piece)
                assert size <= MAX_ANSWER, "the answer has no end"
            data = data[n:]
        return self._replies(b"".join(pieces))

    def _replies(self, answer: bytes) -> list[bytes]:
        replies, at = [], 0
        while at < len(answer):
            (size,) = _SIZE.unpack_from(answer, at)
            at += _SIZE.size
            length = size & ~x.ERROR_BIT
            body = answer[at : at + length]
            assert len(body) == length, "an answer that is cut short"
            at += length
            if size & x.ERROR_BIT:
                self.n_errors += 1
                error = x.unpack_error(body)
                assert error.code != x.ErrorCode.INTERNAL, error
            else:
                replies.append(body)
        return replies

    def call(self, message: m.Message, data: bytes = b"") -> m.Message | bytes | None:
        """Send a request; return its reply, None when it has none or failed.

        Raises: SessionError, HasEndedError.
        """
        if not self.session.is_between_requests:
            raise HasEndedError
        command = command_of(message, self.version)
        body = command.request.pack(message)
        head = REQUEST_HEADER.pack(command.number, len(body) + len(data))
        replies = self.raw(head + body + data)
        assert len(replies) <= (command.response is not None), "more than one reply"
        if not replies:
            return None
        if command.response is None or isinstance(command.response, Raw):
            return replies[0]
        return command.response.unpack(replies[0])

    def alloc(self, size: int) -> Place | None:
        """Make a buffer; None when there is no memory for it."""
        reply = self.call(m.AllocBuffer(0, size))
        if not isinstance(reply, m.AllocBufferReply) or reply.buffer == 0:
            return None
        base = self.call(m.BufferGetBase(reply.buffer))
        assert isinstance(base, m.SizeReply)
        return Place(reply.buffer, base.value)

    def take(self, size: int) -> Room:
        """Make a buffer that there is memory for."""
        place = self.alloc(size)
        assert place is not None, f"no memory for {size} bytes"
        return Room(place, size)

    def read(self, room: Room) -> bytes:
        """Read all of a buffer."""
        if room.size == 0:
            return b""
        data = self.call(m.GetTensor(room.whole, 0, room.size))
        # A client that has freed the buffer by chance reads nothing.
        return data if isinstance(data, bytes) else b""
