"""The device contract: a place that holds buffers and runs graphs, near or across a network.

Local devices (`app.devices`) and remote workers (`app.rpc_backend.client`) implement `Device`; the
engine and the worker use nothing else. Calls on one device take effect in call order. `set_tensor`,
`clear`, `copy_tensor` and `compute` may return before the work is done; `get_tensor` returns a
future that the device resolves in order. A device that fails raises DeviceLostError from the call
or from the future, and from every later call. The four-way split of device, buffer, graph and
transfer follows ggml-backend.h.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from app.ggml.graph import Graph
from app.ggml.ops import Op
from app.ggml.tensor import Buffer, Tensor

Bytes = bytes | bytearray | memoryview


class DeviceKind(Enum):
    """What a device honestly is."""

    CPU = "cpu"
    GPU = "gpu"
    REMOTE = "remote"


class BufferUsage(Enum):
    """What a buffer is for; weights may be sent by hash and kept in a cache."""

    ANY = "any"
    WEIGHTS = "weights"
    COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Name as ggml gives it (CPU, CUDA0, RPC0), a description for people, the kind, and how many
    threads compute where that is known.
    """

    name: str
    description: str
    kind: DeviceKind
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes free for new buffers and bytes in all."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Weight:
    """A whole tensor on its way to a device: its bytes, which nobody changes, and how to learn
    their FNV-1a-64 hash. `arrived(start, end, had)` is told of the bytes that have gone to the
    device; `had` if it had them already.
    """

    tensor: Tensor
    data: memoryview
    hash: Callable[[], int]
    arrived: Callable[[int, int, bool], None]


class Device(Protocol):
    """A place that holds buffers and runs graphs."""

    @property
    def info(self) -> DeviceInfo:
        """Name, description and kind."""

    def memory(self) -> DeviceMemory:
        """Ask for free and total bytes."""

    def alignment(self) -> int:
        """Alignment in bytes that tensors need inside a buffer."""

    def max_size(self) -> int:
        """Largest buffer in bytes."""

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes that a tensor needs in a buffer, padding and scratch included."""

    def alloc(self, size: int, usage: BufferUsage) -> Buffer:
        """Make a buffer.

        Raises: OutOfMemoryError.
        """

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back; graphs that used it are forgotten."""

    def clear(self, buffer: Buffer, value: int) -> None:
        """Fill a whole buffer with one byte value."""

    def init_tensor(self, tensor: Tensor) -> None:
        """Tell the device of a quantised tensor whose rows are not a multiple of 512 elements, so
        that it can pad.
        """

    def set_tensor(self, tensor: Tensor, data: Bytes, offset: int = 0) -> None:
        """Write bytes into a tensor from byte `offset` on."""

    def set_weights(self, weights: Iterable[Weight]) -> None:
        """Write whole tensors, one after the other as they are taken from `weights`; what the
        device can get without being sent it is not sent. Returns when all are there.
        """

    def memset_tensor(self, tensor: Tensor, value: int, offset: int, size: int) -> None:
        """Fill part of a tensor with one byte value."""

    def get_tensor(self, tensor: Tensor, offset: int, size: int) -> "Future[bytes]":
        """Read bytes of a tensor from byte `offset` on, after everything asked before."""

    def copy_tensor(self, source: Tensor, target: Tensor) -> None:
        """Copy between two tensors of equal layout on this device."""

    def compute(self, graph: Graph) -> None:
        """Run a graph; one with a uid is kept and only named the next time.

        Raises: GraphError, UnsupportedError before any kernel runs.
        """

    def ops(self) -> frozenset[Op]:
        """Operations that have a kernel here; `unsupported` says what they do not take."""

    def unsupported(self, nodes: Sequence[Tensor]) -> str | None:
        """Reason why one of `nodes` cannot run here, or None."""

    def synchronize(self) -> None:
        """Wait until everything asked before is done."""

    def close(self) -> None:
        """Free all buffers and stop."""
