"""The host's processors behind the device contract, on the native core; torch is not imported.

Safe to call from several threads: computing is one at a time, transfers go on meanwhile. Transfers
are complete when the call returns, and see every tensor in the form in which it was written:
weights that the core keeps in groups are turned back first. A buffer that cannot fit is refused
before the operating system has to kill anybody for it.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from threading import RLock

from app.devices.base import BufferUsage, Bytes, DeviceInfo, DeviceMemory, Weight
from app.devices.host_cpu import default_threads
from app.devices.host_memory import host_memory, touched_bytes
from app.devices.native_buffer import NativeBuffer, region
from app.devices.native_executor import NativeExecutor
from app.devices.native_weights import overlapping
from app.devices.profile import Profile, ProfileRow
from app.devices.weights import copy_weights
from app.errors import GraphError, OutOfMemoryError
from app.ggml.graph import Graph
from app.ggml.ops import Op
from app.ggml.tensor import Buffer, Tensor
from app.ggml.verify import KNOWN_OPS
from app.kernels.cpu.library import NativeLibrary


class NativeDevice:
    """Implements `app.devices.base.Device` and `app.devices.profile.Profiled`."""

    def __init__(self, info: DeviceInfo, lib: NativeLibrary, threads: int | None = None) -> None:
        """`threads` None takes one per core. Raises: ConfigError when the system refuses them."""
        self._info = info
        self._buffers: set[NativeBuffer] = set()
        self._promised = 0
        self._touched_before = touched_bytes()
        self._lock = RLock()
        pool = lib.new_pool(threads if threads is not None else default_threads())
        self._executor = NativeExecutor(info.name, lib, pool, self._buffers, self._admit)

    @property
    def info(self) -> DeviceInfo:
        """Name, description and kind."""
        return self._info

    @property
    def level(self) -> str:
        """Instructions that the core was compiled for."""
        return self._executor.lib.level

    def memory(self) -> DeviceMemory:
        """Free for new buffers, and total."""
        total = host_memory().total
        return DeviceMemory(max(0, min(total, self._free())), total)

    def alignment(self) -> int:
        """Alignment of tensors in a buffer."""
        return 64

    def max_size(self) -> int:
        """Largest buffer in bytes."""
        return host_memory().total

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes of a tensor; nothing is padded here."""
        return tensor.nbytes

    def alloc(self, size: int, usage: BufferUsage) -> Buffer:
        """Make a zeroed buffer.

        Raises: OutOfMemoryError, GraphError for a negative size.
        """
        if size < 0:
            raise GraphError(f"{self._info.name}: buffer of {size} bytes, expected 0 or more")
        with self._lock:
            self._admit(size)
            try:
                buffer = NativeBuffer(size)
            except (OSError, ValueError, OverflowError) as error:
                raise OutOfMemoryError(self._refusal(size)) from error
            self._buffers.add(buffer)
            self._promised += size
            return buffer

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back and forget the graphs that used it.

        Raises: GraphError when it is not one of this device.
        """
        own = self._own(buffer)
        self._executor.forget(own)
        with self._lock:
            self._buffers.discard(own)
            self._promised -= own.size
        own.release()

    def clear(self, buffer: Buffer, value: int) -> None:
        """Fill a buffer with one byte value."""
        own = self._own(buffer)
        with self._plain(own, 0, own.size):
            ctypes.memset(own.address, value & 255, own.size)

    def init_tensor(self, tensor: Tensor) -> None:
        """Nothing to do: rows need no padding here."""

    def set_tensor(self, tensor: Tensor, data: Bytes, offset: int = 0) -> None:
        """Write bytes into a tensor from byte `offset` on.

        Raises: GraphError.
        """
        source = memoryview(data).cast("B")
        buffer, start = self._region(tensor, offset, source.nbytes)
        with buffer.lock:
            if not buffer.regions:
                buffer.write(start, source)
                return
        with self._plain(buffer, start, start + source.nbytes):
            buffer.write(start, source)

    def set_weights(self, weights: Iterable[Weight]) -> None:
        """Copy whole tensors.

        Raises: GraphError.
        """
        copy_weights(self, weights)

    def memset_tensor(self, tensor: Tensor, value: int, offset: int, size: int) -> None:
        """Fill bytes of a tensor.

        Raises: GraphError.
        """
        buffer, start = self._region(tensor, offset, size)
        with self._plain(buffer, start, start + size):
            ctypes.memset(buffer.address + start, value & 255, size)

    def get_tensor(self, tensor: Tensor, offset: int, size: int) -> "Future[bytes]":
        """Read bytes of a tensor.

        Raises: GraphError.
        """
        buffer, start = self._region(tensor, offset, size)
        done: Future[bytes] = Future()
        with self._plain(buffer, start, start + size):
            done.set_result(buffer.mapping()[start : start + size])
        return done

    def copy_tensor(self, source: Tensor, target: Tensor) -> None:
        """Copy all bytes of a tensor to one of equal size.

        Raises: GraphError.
        """
        if source.nbytes != target.nbytes:
            raise GraphError(
                f"copy of '{source.name}' ({source.nbytes} bytes) to '{target.name}' "
                f"({target.nbytes}): expected equal sizes"
            )
        size = source.nbytes
        from_buffer, start = self._region(source, 0, size)
        to_buffer, to = self._region(target, 0, size)
        with self._executor.lock:
            self._executor.weights.make_plain(from_buffer, start, start + size)
            self._executor.weights.make_plain(to_buffer, to, to + size)
            ctypes.memmove(to_buffer.address + to, from_buffer.address + start, size)

    def compute(self, graph: Graph) -> None:
        """Run a graph.

        Raises: GraphError, UnsupportedError before any kernel runs, OutOfMemoryError.
        """
        self._executor.compute(graph)

    def ops(self) -> frozenset[Op]:
        """Operations that have a kernel here: those of the reference kernels, which stand in."""
        return KNOWN_OPS

    def unsupported(self, nodes: Sequence[Tensor]) -> str | None:
        """Reason why one of `nodes` cannot run here, or None."""
        return self._executor.unsupported(nodes)

    def synchronize(self) -> None:
        """Nothing to wait for: every call returns when its work is done."""

    def start_profile(self) -> None:
        """Time every step from now on; barriers that were left out come back for it."""
        self._executor.profile = Profile()

    def profile(self) -> list[ProfileRow]:
        """Return the time of each kind of step since `start_profile`, slowest first."""
        profile = self._executor.profile
        return [] if profile is None else profile.rows()

    def close(self) -> None:
        """Free all buffers and end the threads."""
        self._executor.close()
        for buffer in list(self._buffers):
            self.free(buffer)

    def _own(self, buffer: Buffer) -> NativeBuffer:
        if not isinstance(buffer, NativeBuffer) or buffer not in self._buffers:
            raise GraphError(f"{self._info.name}: not a buffer of this device, or freed before")
        return buffer

    def _region(self, tensor: Tensor, offset: int, size: int) -> tuple[NativeBuffer, int]:
        buffer, start = region(tensor, offset, size)
        self._own(buffer)
        return buffer, start

    @contextmanager
    def _plain(self, buffer: NativeBuffer, start: int, end: int) -> Iterator[None]:
        """Hold the bytes [start, end) in plain form inside the block.

        The executor's lock comes before a buffer's, and is only taken when weights have to be
        turned back, so that transfers need not wait for a graph that runs.
        """
        buffer.lock.acquire()
        if not overlapping(buffer, start, end):
            try:
                yield
            finally:
                buffer.lock.release()
            return
        buffer.lock.release()
        with self._executor.lock, buffer.lock:
            self._executor.weights.make_plain(buffer, start, end)
            yield

    def _free(self) -> int:
        """Bytes that neither buffers nor their untouched pages nor anybody else will need."""
        touched = touched_bytes() - self._touched_before
        untouched = self._promised - max(0, min(self._promised, touched))
        return host_memory().free - untouched

    def _admit(self, size: int) -> None:
        """Make sure that `size` more bytes can be had.

        Raises: OutOfMemoryError.
        """
        if size > self._free():
            raise OutOfMemoryError(self._refusal(size))

    def _refusal(self, size: int) -> str:
        memory = self.memory()
        return f"{self._info.name}: {size} bytes asked, {memory.free} of {memory.total} free"
