"""The buffers of one device of a worker, and where tensors lie in them.

What the worker says of addresses and sizes is checked, since requests are made of it. Which
requests a tensor needs follows the stock client: GET_ALLOC_SIZE for quantised tensors whose rows
are not a multiple of 512 elements and for operations that may want scratch.
"""

from dataclasses import dataclass
from typing import Final

from app.devices.base import BufferUsage
from app.errors import DeviceLostError, GraphError, OutOfMemoryError
from app.ggml.ops import Op
from app.ggml.tensor import MAX_SRC, Buffer, Tensor
from app.ggml.types import TRAITS
from app.rpc_backend.client.connection import WorkerConnection
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.tensor import NOWHERE, NULL_TENSOR, Place, WireTensor, to_wire

_ROW_MULTIPLE: Final = 512
_MAX_ALIGNMENT: Final = 1024 * 1024
_END_OF_ADDRESSES: Final = 1 << 64
_MAY_NEED_SCRATCH: Final = frozenset(
    {Op.FLASH_ATTN_EXT, Op.MUL_MAT, Op.MUL_MAT_ID, Op.CUMSUM, Op.ARGSORT, Op.TOP_K}
)


@dataclass(slots=True, eq=False)
class RpcBuffer:
    """A buffer on a worker; `base` is the address that tensors in it are told by."""

    owner: "RemoteMemory"
    handle: int
    base: int
    size: int
    usage: BufferUsage
    freed: bool = False


class RemoteMemory:
    """What one device holds; any thread may call."""

    def __init__(
        self, connection: WorkerConnection, index: int, name: str, timeout_s: float | None
    ) -> None:
        """Ask device `index` how it wants its memory; `name` is for messages.

        Raises: DeviceLostError.
        """
        self.connection = connection
        self._index = index
        self._name = f"{name} ({connection.endpoint})"
        self.alignment = connection.call(m.GetAlignment(index), m.SizeReply, timeout_s).value
        self.max_size = connection.call(m.GetMaxSize(index), m.SizeReply, timeout_s).value
        if not 0 < self.alignment <= _MAX_ALIGNMENT or self.max_size == 0:
            raise DeviceLostError(
                f"RPC worker {connection.endpoint}: device {index}: alignment {self.alignment}, "
                f"largest buffer {self.max_size}: expected 1 to {_MAX_ALIGNMENT}, and 1 or more"
            )
        self._alloc_sizes: dict[tuple[object, ...], int] = {}
        self._buffers: set[RpcBuffer] = set()

    @property
    def buffers(self) -> list[RpcBuffer]:
        """The live ones."""
        return list(self._buffers)

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes that a tensor needs in a buffer, padding and scratch included; asks the worker
        once per layout.

        Raises: DeviceLostError.
        """
        if not (needs_padding(tensor) or tensor.op in _MAY_NEED_SCRATCH):
            return tensor.nbytes
        key = (tensor.type, tensor.op, tensor.params.raw, tensor.ne, tensor.nb)
        size = self._alloc_sizes.get(key)
        if size is None:
            size = self._ask_alloc_size(tensor)
            self._alloc_sizes[key] = size
        return max(size, tensor.nbytes)

    def _ask_alloc_size(self, tensor: Tensor) -> int:
        sources = [
            NULL_TENSOR if source is None else to_wire(source, NOWHERE, key=key)
            for key, source in enumerate(tensor.src, 2)
        ]
        sources += [NULL_TENSOR] * (MAX_SRC - len(sources))
        request = m.GetAllocSize(self._index, to_wire(tensor, NOWHERE), tuple(sources))
        return self.connection.call(request, m.SizeReply).value

    def alloc(self, size: int, usage: BufferUsage) -> RpcBuffer:
        """Make a buffer.

        Raises: OutOfMemoryError, DeviceLostError.
        """
        call = self.connection.call
        reply = call(m.AllocBuffer(self._index, size), m.AllocBufferReply)
        if reply.buffer == 0:
            memory = call(m.GetDeviceMemory(self._index), m.DeviceMemoryReply)
            raise OutOfMemoryError(
                f"{self._name}: no memory for a buffer of {size} "
                f"bytes, {memory.free} of {memory.total} bytes are free"
            )
        base = call(m.BufferGetBase(reply.buffer), m.SizeReply).value
        if reply.size < size or not 0 < base <= _END_OF_ADDRESSES - size:
            raise DeviceLostError(
                f"{self._name}: buffer of {reply.size} bytes at {base:#x}: expected {size} bytes "
                "or more at an address from which they fit into 64 bits"
            )
        buffer = RpcBuffer(self, reply.buffer, base, reply.size, usage)
        self._buffers.add(buffer)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back; every kept graph of the worker is forgotten.

        Raises: DeviceLostError.
        """
        own = self.own(buffer, "free")
        own.freed = True
        self._buffers.discard(own)
        with self.connection.lock:
            self.connection.kept.forget_all()
            # A failure of something before it must not keep the memory.
            self.connection.tell(m.FreeBuffer(own.handle), regardless=True)

    def own(self, buffer: Buffer, what: str) -> RpcBuffer:
        """Return a buffer as what it is, for a request of this name.

        Raises: GraphError when it is not a live one of this device.
        """
        if not isinstance(buffer, RpcBuffer) or buffer.owner is not self or buffer.freed:
            raise GraphError(f"{self._name}: {what}: expected a live buffer of this device")
        return buffer

    def describe(self, tensor: Tensor) -> WireTensor:
        """Describe a tensor that lies on this worker, as requests name it.

        Raises: GraphError.
        """
        return to_wire(tensor, self.place(tensor))

    def place(self, tensor: Tensor) -> Place:
        """Return where a tensor lies.

        Raises: GraphError when that is not on this worker.
        """
        buffer = self._buffer_of(tensor)
        if buffer is None:
            raise GraphError(
                f"tensor '{tensor.name}' ({tensor.op.name}): expected memory on {self._name}"
            )
        offset = tensor.offset
        if tensor.buffer is None and tensor.view_src is not None:
            offset = tensor.view_src.offset + tensor.view_offs
        return Place(buffer.handle, buffer.base + offset)

    def _buffer_of(self, tensor: Tensor) -> RpcBuffer | None:
        """The buffer of a tensor or of what it looks at, if it is on this connection and alive."""
        buffer = tensor.buffer
        if buffer is None and tensor.view_src is not None:
            buffer = tensor.view_src.buffer
        if isinstance(buffer, RpcBuffer) and not buffer.freed:
            return buffer if buffer.owner.connection is self.connection else None
        return None


def needs_padding(tensor: Tensor) -> bool:
    """Whether a worker may want more bytes for a tensor than it has."""
    return (
        TRAITS[tensor.type].is_quantized
        and tensor.ne[0] % _ROW_MULTIPLE != 0
        and tensor.view_src is None
    )


def check_range(tensor: Tensor, offset: int, size: int) -> None:
    """Raises: GraphError when bytes do not lie within a tensor."""
    if offset < 0 or size < 0 or offset + size > tensor.nbytes:
        raise GraphError(
            f"tensor '{tensor.name}': bytes {offset} to {offset + size}: "
            f"expected a range within its {tensor.nbytes}"
        )
