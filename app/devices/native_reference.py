"""Runs nodes without a native kernel on the reference kernels, over the same memory. Imports torch.

Called by the native executor when a graph has such nodes. Nodes and their sources are copied with a
torch view of the buffer in place of the native one; the reference compiler then does what it does
for its own device. No decoded weights are kept: this is the rare path.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from app.devices.compiler import Compiler
from app.devices.native_buffer import NativeBuffer, place
from app.devices.scratch import Scratch
from app.devices.torch_buffer import TorchBuffer
from app.devices.torch_errors import translated
from app.devices.weight_cache import WeightCache
from app.ggml.graph import Graph
from app.ggml.tensor import Tensor
from app.kernels.table import Steps
from app.kernels.torch_ref.ops import reference_table


class ReferenceKernels:
    """Compiles and runs nodes; `admit` raises when memory for scratch is not there."""

    def __init__(self, name: str, n_threads: int, admit: Callable[[int], None]) -> None:
        torch.set_num_threads(n_threads)
        self._name = name
        self._device = torch.device("cpu")
        self._table = reference_table()
        self._admit = admit

    def unsupported(self, node: Tensor) -> str | None:
        """Return why a node cannot run, or None."""
        return self._table.supports(node)

    def compile(self, nodes: Sequence[Tensor]) -> Steps:
        """Return the steps of some nodes that follow one another.

        Raises: UnsupportedError, GraphError, OutOfMemoryError.
        """
        copies = [replace(_twin(node), op=node.op, src=_twins(node)) for node in nodes]
        with torch.inference_mode(), translated(self._name):
            compiler = Compiler(
                self._device,
                self._table,
                WeightCache(lambda: 0, 0),
                Scratch(self._device, self._admit),
                Scratch(self._device, self._admit),
            )
            return compiler.compile(Graph(copies)).steps

    def run(self, steps: Steps) -> None:
        """Run what `compile` returned.

        Raises: GraphError, OutOfMemoryError.
        """
        with torch.inference_mode(), translated(self._name):
            for step in steps:
                step()


def _twins(node: Tensor) -> tuple[Tensor | None, ...]:
    return tuple(None if source is None else _twin(source) for source in node.src)


def _twin(tensor: Tensor) -> Tensor:
    """Copy a tensor as a leaf of the torch view of its buffer."""
    buffer, offset = place(tensor)
    return Tensor(
        tensor.type,
        tensor.ne,
        tensor.nb,
        params=tensor.params,
        name=tensor.name,
        buffer=_torch_buffer(buffer),
        offset=offset,
    )


def _torch_buffer(buffer: NativeBuffer) -> TorchBuffer:
    if not isinstance(buffer.twin, TorchBuffer):
        storage = torch.frombuffer(buffer.mapping(), dtype=torch.uint8)
        buffer.twin = TorchBuffer(buffer.size, storage)
    return buffer.twin
