"""A device that accepts everything and computes nothing: schedulers, placement and planners are
tested on it.

It keeps the books of the contract (`app.devices.base`): memory runs out at its configured size,
writes and reads past a tensor's end are refused, a lost device raises from every call. Reads give
zeros. `calls` counts by method name; `graphs` holds what was computed, in order.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from app.devices.base import (
    BufferUsage,
    Bytes,
    DeviceInfo,
    DeviceKind,
    DeviceMemory,
    Weight,
)
from app.devices.weights import copy_weights
from app.errors import DeviceLostError, GraphError, OutOfMemoryError
from app.ggml.graph import Graph
from app.ggml.ops import Op
from app.ggml.tensor import Buffer, Tensor
from app.ggml.verify import KNOWN_OPS

ALIGNMENT = 32


@dataclass(frozen=True, slots=True, eq=False)
class NullBuffer:
    """Bytes that exist only in the books."""

    size: int
    usage: BufferUsage


class NullDevice:
    """A device without memory or arithmetic. Not for use from several threads."""

    def __init__(
        self, name: str = "NULL0", *, total: int = 1 << 40, kind: DeviceKind = DeviceKind.CPU
    ) -> None:
        self._info = DeviceInfo(name, "accepts everything, computes nothing", kind)
        self._total = total
        self._buffers: set[NullBuffer] = set()
        self._lost: str | None = None
        self.calls: Counter[str] = Counter()
        self.graphs: list[Graph] = []
        self.bytes_written = 0
        self.bytes_read = 0

    def lose(self, cause: str) -> None:
        """Make every later call raise DeviceLostError with this cause."""
        self._lost = cause

    @property
    def info(self) -> DeviceInfo:
        """Name, description and kind."""
        return self._info

    @property
    def buffers(self) -> frozenset[NullBuffer]:
        """The buffers that have not been freed."""
        return frozenset(self._buffers)

    def memory(self) -> DeviceMemory:
        """Return free and total bytes."""
        self._enter("memory")
        return DeviceMemory(self._free(), self._total)

    def alignment(self) -> int:
        """Return the alignment in bytes that tensors need inside a buffer."""
        self._enter("alignment")
        return ALIGNMENT

    def max_size(self) -> int:
        """Return the largest buffer in bytes."""
        self._enter("max_size")
        return self._total

    def alloc_size(self, tensor: Tensor) -> int:
        """Return the bytes that a tensor needs in a buffer."""
        self._enter("alloc_size")
        return tensor.nbytes

    def alloc(self, size: int, usage: BufferUsage) -> Buffer:
        """Make a buffer.

        Raises: OutOfMemoryError.
        """
        self._enter("alloc")
        if size > self._free():
            raise OutOfMemoryError(
                f"{self._info.name}: {size} bytes asked, {self._free()} of {self._total} free"
            )
        buffer = NullBuffer(size, usage)
        self._buffers.add(buffer)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back."""
        self._enter("free")
        self._buffers.remove(self._own(buffer))

    def clear(self, buffer: Buffer, value: int) -> None:
        """Pretend to fill a whole buffer."""
        self._enter("clear")
        self._own(buffer)

    def init_tensor(self, tensor: Tensor) -> None:
        """Take note of nothing."""
        self._enter("init_tensor")

    def set_tensor(self, tensor: Tensor, data: Bytes, offset: int = 0) -> None:
        """Count the bytes.

        Raises: GraphError when they pass the end of the tensor.
        """
        self._enter("set_tensor")
        size = memoryview(data).nbytes
        self._check_range(tensor, offset, size)
        self.bytes_written += size

    def set_weights(self, weights: Iterable[Weight]) -> None:
        """Copy whole tensors.

        Raises: GraphError.
        """
        copy_weights(self, weights)

    def memset_tensor(self, tensor: Tensor, value: int, offset: int, size: int) -> None:
        """Pretend to fill part of a tensor.

        Raises: GraphError when it passes the end of the tensor.
        """
        self._enter("memset_tensor")
        self._check_range(tensor, offset, size)

    def get_tensor(self, tensor: Tensor, offset: int, size: int) -> "Future[bytes]":
        """Return `size` zero bytes.

        Raises: GraphError when they pass the end of the tensor.
        """
        self._enter("get_tensor")
        self._check_range(tensor, offset, size)
        self.bytes_read += size
        done: Future[bytes] = Future()
        done.set_result(bytes(size))
        return done

    def copy_tensor(self, source: Tensor, target: Tensor) -> None:
        """Check that both tensors lie here and copy nothing."""
        self._enter("copy_tensor")
        self._check_range(source, 0, source.nbytes)
        self._check_range(target, 0, source.nbytes)

    def compute(self, graph: Graph) -> None:
        """Remember the graph."""
        self._enter("compute")
        self.graphs.append(graph)

    def ops(self) -> frozenset[Op]:
        """Return every operation."""
        return KNOWN_OPS

    def unsupported(self, nodes: Sequence[Tensor]) -> str | None:
        """Return None: everything can run here."""
        self._enter("unsupported")
        return None

    def synchronize(self) -> None:
        """Wait for nothing."""
        self._enter("synchronize")

    def close(self) -> None:
        """Free all buffers."""
        self.calls["close"] += 1
        self._buffers.clear()

    def _enter(self, method: str) -> None:
        self.calls[method] += 1
        if self._lost is not None:
            raise DeviceLostError(f"{self._info.name}: {self._lost}")

    def _free(self) -> int:
        return self._total - sum(buffer.size for buffer in self._buffers)

    def _own(self, buffer: Buffer | None) -> NullBuffer:
        if isinstance(buffer, NullBuffer) and buffer in self._buffers:
            return buffer
        raise GraphError(f"{self._info.name}: the buffer is not of this device, or was freed")

    def _check_range(self, tensor: Tensor, offset: int, size: int) -> None:
        buffer = self._own(tensor.buffer)
        inside = min(offset, size) >= 0 and offset + size <= tensor.nbytes
        if not inside or tensor.offset < 0 or tensor.offset + tensor.nbytes > buffer.size:
            raise GraphError(
                f"{self._info.name}: bytes {offset} to {offset + size} of '{tensor.name}' "
                f"({tensor.nbytes} bytes at {tensor.offset} of {buffer.size}): expected them inside"
            )
