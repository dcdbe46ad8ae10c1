"""Every request and response as a dataclass, and the table of commands.

A command is a row of `COMMANDS`: its number, the versions that have it, and how its request and its
response look. To add one, add a row here, a handler in `worker/handlers.py` and a call in
`client/`. Field orders are the wire's. Bulk data (SET_TENSOR and the like) is not part of a
message: it follows the request's fixed part and travels as bytes beside it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from app.rpc_backend.errors import LocalProtocolError
from app.rpc_backend.wire.constants import MAX_GRAPH_BYTES, NEWEST, PLAIN_TCP, VERSIONS, Cmd
from app.rpc_backend.wire.graph_codec import GraphCompute, GraphLayout
from app.rpc_backend.wire.layout import Body, Layout
from app.rpc_backend.wire.tensor import WireTensor


class Message(Protocol):
    """Any of the dataclasses below."""


@dataclass(frozen=True, slots=True)
class AllocBuffer:
    """Make a buffer of `size` bytes."""

    device: int
    size: int


@dataclass(frozen=True, slots=True)
class AllocBufferReply:
    """The new buffer's handle, 0 when there is no memory for it, and its size."""

    buffer: int
    size: int


@dataclass(frozen=True, slots=True)
class GetAlignment:
    """Ask for the alignment of tensors in a buffer."""

    device: int


@dataclass(frozen=True, slots=True)
class GetMaxSize:
    """Ask for the largest buffer."""

    device: int


@dataclass(frozen=True, slots=True)
class BufferGetBase:
    """Ask for the address at which a buffer begins."""

    buffer: int


@dataclass(frozen=True, slots=True)
class FreeBuffer:
    """Give a buffer back; every kept graph becomes invalid."""

    buffer: int


@dataclass(frozen=True, slots=True)
class BufferClear:
    """Fill a buffer with one byte value."""

    buffer: int
    value: int


@dataclass(frozen=True, slots=True)
class SetTensor:
    """Write the data that follows into a tensor from byte `offset` on; `cache` asks the worker to
    store it under its hash.
    """

    tensor: WireTensor
    cache: int
    offset: int


@dataclass(frozen=True, slots=True)
class SetTensorHash:
    """Write data that the worker may have stored under this FNV-1a-64 hash."""

    tensor: WireTensor
    offset: int
    hash: int


@dataclass(frozen=True, slots=True)
class GetTensor:
    """Read `size` bytes of a tensor; the reply is the bytes alone."""

    tensor: WireTensor
    offset: int
    size: int

    @property
    def reply_bytes(self) -> int:
        """Bytes of the reply."""
        return self.size


@dataclass(frozen=True, slots=True)
class CopyTensor:
    """Copy between two tensors of the same worker."""

    source: WireTensor
    target: WireTensor


@dataclass(frozen=True, slots=True)
class GetDeviceMemory:
    """Ask for free and total bytes."""

    device: int


@dataclass(frozen=True, slots=True)
class DeviceMemoryReply:
    """Free and total bytes."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class InitTensor:
    """Tell of a quantised tensor that the device may want to pad."""

    tensor: WireTensor


@dataclass(frozen=True, slots=True)
class GetAllocSize:
    """Ask how much room a tensor needs; the absent ones of its ten sources are null tensors."""

    device: int
    tensor: WireTensor
    sources: tuple[WireTensor, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """The first request; tells what the client's transport can do."""

    capabilities: bytes = PLAIN_TCP


@dataclass(frozen=True, slots=True)
class HelloReply:
    """The worker's version, and what its transport can do."""

    major: int
    minor: int
    patch: int
    padding: int = 0
    capabilities: bytes = PLAIN_TCP


@dataclass(frozen=True, slots=True)
class DeviceCount:
    """Ask how many devices there are."""


@dataclass(frozen=True, slots=True)
class DeviceCountReply:
    """Number of devices."""

    count: int


@dataclass(frozen=True, slots=True)
class GraphRecompute:
    """Run a kept graph again: by `uid`, or in version 7 the last one of the device."""

    device: int
    uid: int = 0


@dataclass(frozen=True, slots=True)
class MemsetTensor:
    """Fill part of a tensor with one byte value."""

    tensor: WireTensor
    offset: int
    size: int
    value: int


@dataclass(frozen=True, slots=True)
class SetTensor2D:
    """Write `n_copies` pieces of `size` bytes, `stride` bytes apart; the data that follows has no
    gaps.
    """

    tensor: WireTensor
    offset: int
    size: int
    n_copies: int
    stride: int


@dataclass(frozen=True, slots=True)
class GetTensor2D:
    """Read `n_copies` pieces of `size` bytes, `stride` bytes apart; the reply has no gaps."""

    tensor: WireTensor
    offset: int
    size: int
    n_copies: int
    stride: int

    @property
    def reply_bytes(self) -> int:
        """Bytes of the reply."""
        return self.size * self.n_copies


@dataclass(frozen=True, slots=True)
class CommInit:
    """Join a group of workers that add tensors up among themselves."""

    device: int
    rank: int
    world: int
    port: int
    host: bytes


@dataclass(frozen=True, slots=True)
class CommAllreduce:
    """Add a tensor up over all ranks, in place."""

    device: int
    tensor: WireTensor


@dataclass(frozen=True, slots=True)
class CommFree:
    """Leave the group."""

    device: int


@dataclass(frozen=True, slots=True)
class SizeReply:
    """One 64-bit number: an alignment, a size or an address."""

    value: int


@dataclass(frozen=True, slots=True)
class FlagReply:
    """One byte: 1 for yes, 0 for no."""

    value: int


class Codec(Protocol):
    """What the table needs of a layout."""

    @property
    def size(self) -> int:
        """Bytes of the fixed part."""

    def pack(self, message: Any) -> bytes:
        """Pack a message."""

    def unpack(self, body: Body) -> Message:
        """Unpack a message."""


class Tail(Enum):
    """What may follow the fixed part of a request."""

    NONE = "nothing"
    DATA = "bytes that are handed on in chunks"
    GRAPH = "the rest of a graph, read as a whole"


class Raw(Enum):
    """Stands for a response that is nothing but bytes."""

    BYTES = "bytes"


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


_SIZE = Layout(SizeReply, "Q")
_FLAG = Layout(FlagReply, "B")
_ALLOC = Layout(AllocBufferReply, "Q Q")
_MEMORY = Layout(DeviceMemoryReply, "Q Q")
_COUNT = Layout(DeviceCountReply, "I")
_HELLO = Layout(HelloReply, "B B B B 24s")
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
    _row(Cmd.ALLOC_BUFFER, AllocBuffer, "I Q", _ALLOC),
    _row(Cmd.GET_ALIGNMENT, GetAlignment, "I", _SIZE),
    _row(Cmd.GET_MAX_SIZE, GetMaxSize, "I", _SIZE),
    _row(Cmd.BUFFER_GET_BASE, BufferGetBase, "Q", _SIZE),
    _row(Cmd.FREE_BUFFER, FreeBuffer, "Q"),
    _row(Cmd.BUFFER_CLEAR, BufferClear, "Q B"),
    _row(Cmd.SET_TENSOR, SetTensor, "T B Q", None, Tail.DATA),
    _row(Cmd.SET_TENSOR_HASH, SetTensorHash, "T Q Q", _FLAG),
    _row(Cmd.GET_TENSOR, GetTensor, "T Q Q", Raw.BYTES),
    _row(Cmd.COPY_TENSOR, CopyTensor, "T T", _FLAG),
    _graph_row(False, _V7),
    _graph_row(True, _V8),
    _row(Cmd.GET_DEVICE_MEMORY, GetDeviceMemory, "I", _MEMORY),
    _row(Cmd.INIT_TENSOR, InitTensor, "T"),
    _row(Cmd.GET_ALLOC_SIZE, GetAllocSize, "I T S", _SIZE),
    _row(Cmd.HELLO, Hello, "24s", _HELLO),
    _row(Cmd.DEVICE_COUNT, DeviceCount, "", _COUNT),
    _row(Cmd.GRAPH_RECOMPUTE, GraphRecompute, "I", versions=_V7),
    _row(Cmd.GRAPH_RECOMPUTE, GraphRecompute, "I Q", versions=_V8),
    _row(Cmd.MEMSET_TENSOR, MemsetTensor, "T Q Q B"),
    _row(Cmd.SET_TENSOR_2D, SetTensor2D, "T Q Q Q Q", None, Tail.DATA, _V8),
    _row(Cmd.GET_TENSOR_2D, GetTensor2D, "T Q Q Q Q", Raw.BYTES, versions=_V8),
    _row(Cmd.COMM_INIT, CommInit, "I I I I 64s", _FLAG, versions=_V8),
    _row(Cmd.COMM_ALLREDUCE, CommAllreduce, "I T", versions=_V8),
    _row(Cmd.COMM_FREE, CommFree, "I", versions=_V8),
)

_BY_NUMBER: Final = {v: {int(c.number): c for c in COMMANDS if v in c.versions} for v in VERSIONS}
_BY_MESSAGE: Final = {v: {c.message: c for c in COMMANDS if v in c.versions} for v in VERSIONS}


def command_by_number(number: int, version: int) -> Command | None:
    """Return the row of a command number, None when `version` has no such command."""
    return _BY_NUMBER[version].get(number)


def command_of(message: Message, version: int = NEWEST) -> Command:
    """Return the row of a request.

    Raises: LocalProtocolError when `version` has no such request.
    """
    row = _BY_MESSAGE[version].get(type(message))
    if row is None:
        raise LocalProtocolError(f"{type(message).__name__}: not in protocol version {version}")
    return row
