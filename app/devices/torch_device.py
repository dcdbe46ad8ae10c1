"""Any torch device (cpu, cuda:N, xpu:N, mps) behind the device contract, on the reference kernels.

Safe to call from several threads: computing is one at a time, transfers go on meanwhile. Transfers
are complete when the call returns. Memory for buffers comes first: decoded weights give way, and a
buffer that cannot fit is refused before the operating system has to kill anybody for it.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from threading import RLock

import numpy as np
import torch

from app.devices.base import BufferUsage, Bytes, DeviceInfo, DeviceMemory, Weight
from app.devices.executor import Executor
from app.devices.torch_buffer import TorchBuffer, device_storage, host_storage, place, region
from app.devices.torch_errors import translated
from app.devices.torch_memory import MemoryProbe
from app.devices.weight_cache import WeightCache
from app.devices.weights import copy_weights
from app.errors import GraphError, OutOfMemoryError
from app.ggml.graph import Graph
from app.ggml.ops import Op
from app.ggml.tensor import Buffer, Tensor
from app.kernels.torch_ref.ops import reference_table

_STAGE_BYTES = 4 << 20


class TorchDevice:
    """Implements `app.devices.base.Device`."""

    def __init__(
        self, info: DeviceInfo, device: torch.device, weight_budget: int | None = None
    ) -> None:
        self._info = info
        self._device = device
        self._probe = MemoryProbe(device)
        self._buffers: set[TorchBuffer] = set()
        self._promised = 0
        self._lock = RLock()
        self._weights = WeightCache(self._spare, weight_budget)
        self._executor = Executor(
            info.name, device, reference_table(), self._weights, self._buffers, self._admit
        )

    @property
    def info(self) -> DeviceInfo:
        """Name, description and kind."""
        return self._info

    @property
    def weight_bytes(self) -> int:
        """Bytes of decoded weights, which give way to buffers."""
        return self._weights.nbytes

    def memory(self) -> DeviceMemory:
        """Free for new buffers, decoded weights counted as free, and total."""
        total = self._probe.total()
        return DeviceMemory(max(0, min(total, self._free() + self._weights.nbytes)), total)

    def alignment(self) -> int:
        """Alignment of tensors in a buffer."""
        return 64

    def max_size(self) -> int:
        """Largest buffer in bytes."""
        return self._probe.total()

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
                storage = (
                    host_storage(size) if self._on_host else device_storage(size, self._device)
                )
            except (OSError, RuntimeError, MemoryError) as error:
                raise OutOfMemoryError(self._refusal(size)) from error
            buffer = TorchBuffer(size, storage)
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
        if not self._on_host:
            torch.get_device_module(self._device).empty_cache()

    def clear(self, buffer: Buffer, value: int) -> None:
        """Fill a buffer with one byte value."""
        own = self._own(buffer)
        with translated(self._info.name):
            own.storage.fill_(value & 255)
        self._weights.invalidate(own, 0, own.size)

    def init_tensor(self, tensor: Tensor) -> None:
        """Nothing to do: rows need no padding here."""

    def set_tensor(self, tensor: Tensor, data: Bytes, offset: int = 0) -> None:
        """Write bytes into a tensor from byte `offset` on.

        Raises: GraphError.
        """
        source = np.frombuffer(data, dtype=np.uint8)
        buffer, start = self._region(tensor, offset, source.size)
        target = buffer.storage[start : start + source.size]
        if self._on_host:
            np.copyto(target.numpy(), source)
        else:
            with translated(self._info.name):
                for at in range(0, source.size, _STAGE_BYTES):
                    piece = torch.tensor(source[at : at + _STAGE_BYTES])
                    target[at : at + _STAGE_BYTES].copy_(piece)
        self._weights.invalidate(buffer, start, start + source.size)

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
        with translated(self._info.name):
            buffer.storage[start : start + size].fill_(value & 255)
        self._weights.invalidate(buffer, start, start + size)

    def get_tensor(self, tensor: Tensor, offset: int, size: int) -> "Future[bytes]":
        """Read bytes of a tensor.

        Raises: GraphError.
        """
        buffer, start = self._region(tensor, offset, size)
        done: Future[bytes] = Future()
        with translated(self._info.name):
            done.set_result(buffer.storage[start : start + size].cpu().numpy().tobytes())
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
        from_buffer, start = self._region(source, 0, source.nbytes)
        to_buffer, to = self._region(target, 0, source.nbytes)
        piece = from_buffer.storage[start : start + source.nbytes]
        with translated(self._info.name):
            if from_buffer is to_buffer:
                piece = piece.clone()
            to_buffer.storage[to : to + source.nbytes].copy_(piece)
        self._weights.invalidate(to_buffer, to, to + source.nbytes)

    def compute(self, graph: Graph) -> None:
        """Run a graph.

        Raises: GraphError, UnsupportedError before any kernel runs, OutOfMemoryError.
        """
        self._executor.compute(graph)

    def ops(self) -> frozenset[Op]:
        """Operations that have a kernel here."""
        return self._executor.table.ops

    def unsupported(self, nodes: Sequence[Tensor]) -> str | None:
        """Reason why one of `nodes` cannot run here, or None."""
        return self._executor.unsupported(nodes)

    def synchronize(self) -> None:
        """Wait until the accelerator has done everything."""
        if not self._on_host:
            with translated(self._info.name):
                torch.get_device_module(self._device).synchronize()

    def close(self) -> None:
        """Free all buffers."""
        self._executor.close()
        for buffer in list(self._buffers):
            self.free(buffer)

    @property
    def _on_host(self) -> bool:
        return self._device.type == "cpu"

    def _own(self, buffer: Buffer) -> TorchBuffer:
        if not isinstance(buffer, TorchBuffer) or buffer not in self._buffers:
            raise GraphError(f"{self._info.name}: not a buffer of this device, or freed before")
        return buffer

    def _region(self, tensor: Tensor, offset: int, size: int) -> tuple[TorchBuffer, int]:
        self._own(place(tensor)[0])
        return region(tensor, offset, size)

    def _free(self) -> int:
        """Bytes that neither buffers nor their untouched pages nor anybody else will need."""
        return self._probe.free(self._promised, self._weights.nbytes)

    def _spare(self) -> int:
        """Bytes that decoded weights may still take: a margin stays for everything else."""
        return self._free() - self._probe.margin()

    def _admit(self, size: int) -> None:
        """Make sure that `size` more bytes can be had, at the expense of decoded weights.

        Raises: OutOfMemoryError.
        """
        missing = size - self._free()
        if missing > 0:
            self._weights.shrink(missing)
            if size > self._free():
                raise OutOfMemoryError(self._refusal(size))

    def _refusal(self, size: int) -> str:
        memory = self.memory()
        return f"{self._info.name}: {size} bytes asked, {memory.free} of {memory.total} free"
