"""A client's buffers: opaque handles, synthetic addresses, and the only bounds check.

Handles are numbers of a table that belongs to one client, so another client's handle means nothing
here. Addresses are arithmetic for the client's allocator (base + offset) and point nowhere: ranges
never overlap and are never used twice by one client. Every tensor that a peer describes goes
through `locate` before anything touches memory; `resolve_region` remembers its answers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from app.devices.base import Device
from app.errors import GraphError
from app.ggml.tensor import Buffer, Tensor
from app.rpc_backend.errors import RemoteProtocolError
from app.rpc_backend.wire.tensor import WireTensor, to_tensor
from app.rpc_backend.worker.lanes import Event

_FIRST_ADDRESS: Final = 1 << 40
_ADDRESS_GRAIN: Final = 1 << 21
_LAST_ADDRESS: Final = 1 << 62
_MAX_LOCATED: Final = 256

MAX_BUFFERS: Final = 1024
"""Most buffers of one client."""

_handles = count(1)


@dataclass(frozen=True, slots=True, eq=False)
class HeldBuffer:
    """A buffer on one of the worker's devices, and what the client knows it by; `event` is over
    when no graph that was given to a lane touches it any more.
    """

    handle: int
    base: int
    device_index: int
    device: Device
    buffer: Buffer
    event: Event = field(default_factory=Event)


class Located(NamedTuple):
    """A tensor that lies inside a buffer with all its bytes."""

    held: HeldBuffer
    tensor: Tensor
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Region:
    """A checked range: `size` bytes of `tensor` from byte `offset` on, all inside its buffer."""

    held: HeldBuffer
    tensor: Tensor
    offset: int
    size: int

    @property
    def device(self) -> Device:
        """The device that has the buffer."""
        return self.held.device


class BufferTable:
    """The buffers of one client; used by that client's thread only."""

    def __init__(self) -> None:
        self._held: dict[int, HeldBuffer] = {}
        self._next_base = _FIRST_ADDRESS
        self._located: dict[WireTensor, Located] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldBuffer]:
        return iter(list(self._held.values()))

    @property
    def n_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(held.buffer.size for held in self._held.values())

    def has_room_for(self, size: int) -> bool:
        """Whether a range of `size` addresses is left, and one more buffer is within reason: the
        system gives a process about 65,000 mappings.
        """
        return self._next_base + size <= _LAST_ADDRESS and len(self._held) < MAX_BUFFERS

    def add(self, device_index: int, device: Device, buffer: Buffer) -> HeldBuffer:
        """Give a new buffer a handle and a range of addresses."""
        held = HeldBuffer(next(_handles), self._next_base, device_index, device, buffer)
        self._held[held.handle] = held
        # One grain more than the size keeps the end of one range apart from the next one's start.
        self._next_base += (buffer.size // _ADDRESS_GRAIN + 1) * _ADDRESS_GRAIN
        return held

    def get(self, handle: int) -> HeldBuffer:
        """Return the buffer of a handle.

        Raises: RemoteProtocolError.
        """
        held = self._held.get(handle)
        if held is None:
            raise RemoteProtocolError(f"buffer handle {handle:#x}: not a buffer of this client")
        return held

    def remove(self, handle: int) -> HeldBuffer:
        """Forget a handle and return its buffer.

        Raises: RemoteProtocolError.
        """
        held = self.get(handle)
        self._located.clear()
        del self._held[handle]
        return held

    def resolve_region(self, wire: WireTensor, offset: int = 0, size: int | None = None) -> Region:
        """Return a checked region, see `check_region`, once no graph touches its buffer any more.

        Raises: RemoteProtocolError, GraphError naming the tensor and the range.
        """
        region = self.check_region(wire, offset, size)
        region.held.event.wait()
        return region

    def check_region(self, wire: WireTensor, offset: int = 0, size: int | None = None) -> Region:
        """Check that a tensor lies inside one of this client's buffers, and `size` bytes from
        `offset` on (all of it by default) inside the tensor. The tensor must not be changed; a
        graph may be at work on it.

        Raises: RemoteProtocolError, GraphError naming the tensor and the range.
        """
        located = self._located.get(wire)
        if located is None:
            located = self.locate(wire)
            if len(self._located) >= _MAX_LOCATED:
                self._located.clear()
            self._located[wire] = located
        nbytes = located.n_bytes
        size = nbytes - offset if size is None else size
        if offset > nbytes or size > nbytes - offset:
            raise GraphError(
                f"tensor '{wire.label}': bytes {offset} to {offset + size}: "
                f"expected a range within its {nbytes}"
            )
        return Region(located.held, located.tensor, offset, size)

    def locate(self, wire: WireTensor) -> Located:
        """Make a tensor of a description, after checking that all of it lies inside one of this
        client's buffers.

        Raises: RemoteProtocolError, GraphError naming the tensor and the range.
        """
        if wire.buffer == 0:
            raise RemoteProtocolError(
                f"tensor '{wire.label}': no buffer, data {wire.data:#x}: expected memory here"
            )
        held = self.get(wire.buffer)
        start = wire.data - held.base
        tensor = to_tensor(wire, held.buffer, start)
        n_bytes = tensor.nbytes
        if start < 0 or start + n_bytes > held.buffer.size:
            raise GraphError(
                f"tensor '{wire.label}': {n_bytes} bytes at {wire.data:#x}: expected a range "
                f"within {held.base:#x} + {held.buffer.size} bytes"
            )
        return Located(held, tensor, n_bytes)
