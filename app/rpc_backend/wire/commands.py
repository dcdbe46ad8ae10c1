"""The table of commands: one row says all that the cores need to know of one.

A row has the command's number, the versions that have it, and how its request and its response look
in bytes (codes: see `layout.py`). To add a command, add its dataclass in `messages.py`, a row here,
a handler in `worker/handlers.py` and a call in `client/`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from app.rpc_backend.errors import LocalProtocolError
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.constants import MAX_GRAPH_BYTES, NEWEST, VERSIONS, Cmd
from app.rpc_backend.wire.graph_codec import GraphCompute, GraphLayout
from app.rpc_backend.wire.layout import Body, Layout


class Codec(Protocol):
    """What the table needs of a layout."""

    @property
    def size(self) -> int:
        """Bytes of the fixed part."""

    def pack(self, message: Any) -> bytes:
        """Pack a message."""

    def unpack(self, body: Body) -> m.Message:
        """Unpack a message."""


class Tail(Enum):
    """What may follow the fixed part of a request."""

    NONE = "nothing"
    DATA = "bytes that are handed on in chunks"
    GRAPH = "the rest of a graph, read as a whole"


class Raw(Enum):
    """Stands for a response that is nothing but bytes."""

    BYTES = "bytes"
    TEXT = "text of any length"


@dataclass(frozen=True, slots=True)
class Command:
    """One row: `response` None means that there is none."""

    number: Cmd
    message: type
    request: Codec
    response: Codec | Raw | None = None
    tail: Tail = Tail.NONE
    versions: tuple[int, ...] = tuple(VERSIONS)
    max_bytes: int | None = None
    """Largest body; None where the data's target sets the limit."""

    @property
    def is_extension(self) -> bool:
        """Whether only our own ends know it."""
        return self.number >= x.FIRST_EXTENSION


_SIZE = Layout(m.SizeReply, "Q")
_FLAG = Layout(m.FlagReply, "B")
_ALLOC = Layout(m.AllocBufferReply, "Q Q")
_MEMORY = Layout(m.DeviceMemoryReply, "Q Q")
_COUNT = Layout(m.DeviceCountReply, "I")
_EXTENDED = Layout(x.ExtendReply, "B 32s")
_PROVEN = Layout(x.ProveReply, "B 32s")
_PONG = Layout(x.Ping, "Q")
_DOOR = Layout(x.DoorReply, "16s")
_HELLO = Layout(m.HelloReply, "B B B B 24s")
_V7, _V8 = (7,), (8,)


def _row(
    number: Cmd,
    message: type,
    codes: str,
    response: Codec | Raw | None = None,
    tail: Tail = Tail.NONE,
    versions: tuple[int, ...] = tuple(VERSIONS),
) -> Command:
    layout: Codec = Layout(message, codes)
    limit = layout.size if tail is Tail.NONE else None
    return Command(number, message, layout, response, tail, versions, limit)


def _graph_row(has_uid: bool, versions: tuple[int, ...]) -> Command:
    layout, number = GraphLayout(has_uid), Cmd.GRAPH_COMPUTE
    return Command(number, GraphCompute, layout, None, Tail.GRAPH, versions, MAX_GRAPH_BYTES)


COMMANDS: Final = (
    _row(Cmd.ALLOC_BUFFER, m.AllocBuffer, "I Q", _ALLOC),
    _row(Cmd.GET_ALIGNMENT, m.GetAlignment, "I", _SIZE),
    _row(Cmd.GET_MAX_SIZE, m.GetMaxSize, "I", _SIZE),
    _row(Cmd.BUFFER_GET_BASE, m.BufferGetBase, "Q", _SIZE),
    _row(Cmd.FREE_BUFFER, m.FreeBuffer, "Q"),
    _row(Cmd.BUFFER_CLEAR, m.BufferClear, "Q B"),
    _row(Cmd.SET_TENSOR, m.SetTensor, "T B Q", None, Tail.DATA),
    _row(Cmd.SET_TENSOR_HASH, m.SetTensorHash, "T Q Q", _FLAG),
    _row(Cmd.GET_TENSOR, m.GetTensor, "T Q Q", Raw.BYTES),
    _row(Cmd.COPY_TENSOR, m.CopyTensor, "T T", _FLAG),
    _graph_row(False, _V7),
    _graph_row(True, _V8),
    _row(Cmd.GET_DEVICE_MEMORY, m.GetDeviceMemory, "I", _MEMORY),
    _row(Cmd.INIT_TENSOR, m.InitTensor, "T"),
    _row(Cmd.GET_ALLOC_SIZE, m.GetAllocSize, "I T S", _SIZE),
    _row(Cmd.HELLO, m.Hello, "24s", _HELLO),
    _row(Cmd.DEVICE_COUNT, m.DeviceCount, "", _COUNT),
    _row(Cmd.GRAPH_RECOMPUTE, m.GraphRecompute, "I", versions=_V7),
    _row(Cmd.GRAPH_RECOMPUTE, m.GraphRecompute, "I Q", versions=_V8),
    _row(Cmd.MEMSET_TENSOR, m.MemsetTensor, "T Q Q B"),
    _row(Cmd.SET_TENSOR_2D, m.SetTensor2D, "T Q Q Q Q", None, Tail.DATA, _V8),
    _row(Cmd.GET_TENSOR_2D, m.GetTensor2D, "T Q Q Q Q", Raw.BYTES, versions=_V8),
    _row(Cmd.COMM_INIT, m.CommInit, "I I I I 64s", _FLAG, versions=_V8),
    _row(Cmd.COMM_ALLREDUCE, m.CommAllreduce, "I T", versions=_V8),
    _row(Cmd.COMM_FREE, m.CommFree, "I", versions=_V8),
    _row(Cmd.EXTEND, x.Extend, "B 32s", _EXTENDED),
    _row(Cmd.PROVE, x.Prove, "32s", _PROVEN),
    _row(Cmd.PING, x.Ping, "Q", _PONG),
    _row(Cmd.DEVICE_FACTS, x.DeviceFacts, "I", Raw.TEXT),
    _row(Cmd.WAIT_BUFFER, x.WaitBuffer, "Q", _FLAG),
    _row(Cmd.OPEN_DOOR, x.OpenDoor, "", _DOOR),
    _row(Cmd.PUSH_TENSOR, x.PushTensor, "T Q Q Q I 64s 16s"),
    _row(Cmd.DELIVER, x.Deliver, "16s Q", None, Tail.DATA),
    _row(Cmd.TAKE_DELIVERY, x.TakeDelivery, "T Q Q Q"),
)

_BY_NUMBER: Final = {v: {int(c.number): c for c in COMMANDS if v in c.versions} for v in VERSIONS}
_BY_MESSAGE: Final = {v: {c.message: c for c in COMMANDS if v in c.versions} for v in VERSIONS}


def command_by_number(number: int, version: int) -> Command | None:
    """Return the row of a command number, None when `version` has no such command."""
    return _BY_NUMBER[version].get(number)


def command_of(message: m.Message, version: int = NEWEST) -> Command:
    """Return the row of a request.

    Raises: LocalProtocolError when `version` has no such request.
    """
    row = _BY_MESSAGE[version].get(type(message))
    if row is None:
        raise LocalProtocolError(f"{type(message).__name__}: not in protocol version {version}")
    return row
