"""Turns one graph into a plan: what a kernel may ask for while its node is compiled.

Made by the executor for one graph and thrown away. Knows which bytes the graph writes, and so which
sources are weights, and until when a value that several nodes share is still true.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from app.devices.scratch import Scratch
from app.devices.spans import Range, merged, touches
from app.devices.torch_buffer import TorchBuffer, block_view, element_view, region
from app.devices.weight_cache import WeightCache
from app.errors import UnsupportedError
from app.ggml.graph import Graph
from app.ggml.tensor import Tensor
from app.kernels.table import KernelTable, Steps
from app.kernels.torch_ref import dequant
from app.kernels.torch_ref.context import DTYPES, Context, Weight

T = TypeVar("T")
Span = tuple[TorchBuffer, int, int]

# Values that nodes may share at a time: each node that writes is held against all of them.
_MOST_SHARED = 64


@dataclass(slots=True)
class Plan:
    """Steps in order, the regions that they write, and every buffer that they touch."""

    steps: Steps
    written: dict[TorchBuffer, list[Range]]
    buffers: set[TorchBuffer]
    last_run: int = 0


@dataclass(slots=True)
class _Shared:
    """A value of one run and the bytes that it was computed from."""

    value: object
    reads: list[Span]


@dataclass(slots=True)
class Compiler:
    """Implements `app.kernels.torch_ref.context.Context`."""

    device: torch.device
    table: KernelTable[Context]
    weights: WeightCache
    node_scratch: Scratch
    run_scratch: Scratch
    _plan: Plan = field(init=False)
    _shared: dict[Hashable, _Shared] = field(default_factory=dict)
    _constants: dict[Hashable, torch.Tensor] = field(default_factory=dict)

    def compile(self, graph: Graph) -> Plan:
        """Return the plan of `graph`.

        Raises: UnsupportedError, GraphError, OutOfMemoryError.
        """
        nodes = list(graph.compute_nodes())
        for node in nodes:
            reason = self.table.supports(node)
            if reason is not None:
                raise UnsupportedError(reason)
        spans = [_span(node) for node in nodes]
        buffers = {_span(source)[0] for node in nodes for source in node.src if source is not None}
        buffers |= {buffer for buffer, _, _ in spans}
        self._plan = Plan([], _by_buffer(spans), buffers)
        for node, span in zip(nodes, spans, strict=True):
            self.node_scratch.reset()
            if node.n_elements:
                self._plan.steps += self.table.compile(self, node)
                self._outdate(span)
        return self._plan

    def view(self, tensor: Tensor) -> torch.Tensor:
        """Return the elements (ne3, ne2, ne1, ne0)."""
        return element_view(tensor)

    def blocks(self, tensor: Tensor) -> torch.Tensor:
        """Return the bytes (ne3, ne2, ne1, n_blocks, type_size)."""
        return block_view(tensor)

    def scratch(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return memory that is this node's until it has run."""
        return self.node_scratch.take(shape, dtype)

    def kept(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return memory that lasts for the whole run."""
        return self.run_scratch.take(shape, dtype)

    def once(
        self, key: Hashable, reads: Sequence[Tensor], make: Callable[[], tuple[T, Steps]]
    ) -> T:
        """Return the value under `key`, made by steps ahead of the first node that asks."""
        found = self._shared.get(key)
        if found is None:
            value, steps = make()
            self._plan.steps += steps
            if len(self._shared) >= _MOST_SHARED:
                del self._shared[next(iter(self._shared))]
            self._shared[key] = _Shared(value, [_span(tensor) for tensor in reads])
            return value
        return found.value  # type: ignore[return-value]  # a key is used with one type only

    def weight(self, tensor: Tensor) -> Weight | None:
        """Return the kept float32 copy of a tensor that this graph does not write."""
        span = _span(tensor)
        buffer, start, end = span
        if touches(self._plan.written.get(buffer, ()), start, end):
            return None
        key = (tensor.type, start, tensor.ne, tensor.nb)
        nbytes = 4 * tensor.n_elements
        return self.weights.entry(buffer, key, (start, end), nbytes, _decoder(tensor))

    def constant(self, values: Sequence[float] | Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a small tensor of fixed values."""
        key = (tuple(values), dtype)
        found = self._constants.get(key)
        if found is None:
            found = torch.tensor(values, dtype=dtype, device=self.device)
            self._constants[key] = found
        return found

    def _outdate(self, written: Span) -> None:
        """Forget shared values that were computed from bytes that are now overwritten."""
        for key, shared in list(self._shared.items()):
            if any(_overlap(span, written) for span in shared.reads):
                del self._shared[key]


def _span(tensor: Tensor) -> Span:
    buffer, start = region(tensor, 0, 0)
    return buffer, start, start + tensor.nbytes


def _overlap(a: Span, b: Span) -> bool:
    return a[0] is b[0] and a[1] < b[2] and b[1] < a[2]


def _by_buffer(spans: Iterable[Span]) -> dict[TorchBuffer, list[Range]]:
    """Join the regions of each buffer that touch one another."""
    ranges: dict[TorchBuffer, list[Range]] = {}
    for buffer, start, end in spans:
        ranges.setdefault(buffer, []).append((start, end))
    return {buffer: merged(those) for buffer, those in ranges.items()}


def _decoder(tensor: Tensor) -> Callable[[], torch.Tensor]:
    """Return a function that makes the float32 copy; it holds the bytes, not the tensor."""
    shape, type_ = tensor.ne[::-1], tensor.type
    source = element_view(tensor) if type_ in DTYPES else block_view(tensor)

    def decode() -> torch.Tensor:
        result = torch.empty(shape, dtype=torch.float32, device=source.device)
        if type_ in DTYPES:
            return result.copy_(source)
        dequant.into(type_, source, result)
        return result

    return decode
