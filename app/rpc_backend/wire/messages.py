"""Every request and response as a dataclass, in the order of their numbers.

Field orders are the wire's; `commands.py` says how each looks in bytes. GRAPH_COMPUTE is in
`graph_codec.py`. Bulk data (SET_TENSOR and the like) is not part of a message: it follows the
request's fixed part and travels as bytes beside it.
"""

from dataclasses import dataclass
from typing import Protocol

from app.rpc_backend.wire.constants import PLAIN_TCP
from app.rpc_backend.wire.tensor import WireTensor


class Message(Protocol):
    """Any of the dataclasses below, or GraphCompute."""


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
