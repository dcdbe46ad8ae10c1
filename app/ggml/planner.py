"""Lifetimes → offsets: which bytes of one scratch buffer each intermediate result uses.

Pure functions on a graph; the engine plans a stage's graph and assigns the plan before a device
sees it. Weights and caches have buffers of their own and are not planned. Views use the memory of
their root. Inputs and outputs own their memory for the whole run, so that inputs survive a repeat
and outputs can be read after it. Everything else lives from the node that makes it to the last node
that reads it or a view of it, and the bytes are given to the smallest gap that fits (ggml-alloc.c
works the same way). Element-wise operations overwrite a source that dies there. A device that runs
nodes in another order, or fuses them, must look at the offsets: reuse is only safe in node order.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.errors import GraphError
from app.ggml.graph import Graph
from app.ggml.ops import VIEW_OPS, Op
from app.ggml.tensor import Buffer, Tensor, TensorFlag

# Operations that read each element once, where they write it.
IN_PLACE_OPS: Final = frozenset(
    {Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.SCALE, Op.CLAMP, Op.UNARY, Op.SQR, Op.SQRT, Op.LOG}
)
_PINNED: Final = int(TensorFlag.INPUT | TensorFlag.OUTPUT)
_FOREVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offset in bytes of every planned tensor (views are not listed) and bytes needed in all."""

    offsets: Mapping[Tensor, int]
    size: int


def plan_memory(
    graph: Graph, *, alignment: int, alloc_size: Callable[[Tensor], int] | None = None
) -> MemoryPlan:
    """Give every node and input leaf without memory of its own a place in one buffer.

    `alloc_size` is the device's own idea of a tensor's bytes; by default it is `nbytes`.
    """
    last_use = _last_uses(graph)
    arena = _Arena(alignment)
    offsets: dict[Tensor, int] = {}
    sizes: dict[Tensor, int] = {}
    for tensor in last_use:
        sizes[tensor] = arena.padded(tensor.nbytes if alloc_size is None else alloc_size(tensor))
    for tensor, last in last_use.items():
        if last == _FOREVER:
            offsets[tensor] = arena.take(sizes[tensor])
    dying = _by_last_use(last_use, len(graph.nodes))
    for index, node in enumerate(graph.nodes):
        reused = None
        if node in last_use and node not in offsets:
            reused = _reusable_source(node, dying[index], sizes)
            offsets[node] = arena.take(sizes[node]) if reused is None else offsets[reused]
        for tensor in dying[index]:
            if tensor is not reused:
                arena.give_back(offsets[tensor], sizes[tensor])
    return MemoryPlan(offsets, arena.size)


def assign(plan: MemoryPlan, graph: Graph, buffer: Buffer) -> None:
    """Point every planned tensor into `buffer`, and every view at the memory of its root.

    Raises: GraphError when the buffer is too small.
    """
    if plan.size > buffer.size:
        raise GraphError(
            f"a plan of {plan.size} bytes, expected at most the buffer's {buffer.size}"
        )
    for tensor, offset in plan.offsets.items():
        tensor.buffer, tensor.offset = buffer, offset
    for tensor in graph.tensors():
        root = tensor.view_src
        if root is not None and root.buffer is not None:
            tensor.buffer, tensor.offset = root.buffer, root.offset + tensor.view_offs


def _root(tensor: Tensor) -> Tensor:
    while tensor.view_src is not None:
        tensor = tensor.view_src
    return tensor


def _last_uses(graph: Graph) -> dict[Tensor, int]:
    """The tensors to be planned, in the order in which they come to life, and the index of the node
    that uses each last.
    """
    last_use: dict[Tensor, int] = {}
    for index, node in enumerate(graph.nodes):
        for source in node.src:
            if source is None:
                continue
            root = _root(source)
            if root in last_use:
                last_use[root] = max(last_use[root], index)
            elif root.buffer is None and root.flags & TensorFlag.INPUT:
                last_use[root] = _FOREVER
        root = _root(node)
        if root is node:
            if node.buffer is None and node.op not in VIEW_OPS:
                last_use[node] = index
        elif root in last_use:
            last_use[root] = max(last_use[root], index)
        if node.flags & _PINNED and root in last_use:
            last_use[root] = _FOREVER
    return last_use


def _by_last_use(last_use: Mapping[Tensor, int], n_nodes: int) -> list[list[Tensor]]:
    dying: list[list[Tensor]] = [[] for _ in range(n_nodes)]
    for tensor, last in last_use.items():
        if last != _FOREVER:
            dying[last].append(tensor)
    return dying


def _reusable_source(
    node: Tensor, dying: Sequence[Tensor], sizes: Mapping[Tensor, int]
) -> Tensor | None:
    """The tensor whose memory `node` may overwrite: it dies here, has the same layout, and no other
    source looks at its memory differently.
    """
    if node.op not in IN_PLACE_OPS or not node.is_contiguous:
        return None
    for source in node.src:
        if source is None or not _same_layout(source, node):
            continue
        root = _root(source)
        if root not in dying or root is node or sizes[root] != sizes[node]:
            continue
        aliases = (other for other in node.src if other is not None and _root(other) is root)
        if all(_same_layout(other, node) for other in aliases):
            return root
    return None


def _same_layout(a: Tensor, b: Tensor) -> bool:
    return a.type == b.type and a.ne == b.ne and a.nb == b.nb and a.view_offs == 0


@dataclass(slots=True)
class _Arena:
    """Free gaps below `size`, as (start, end) in order, no two touching."""

    alignment: int
    size: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def padded(self, size: int) -> int:
        """Return `size` rounded up; never zero, so that no two tensors share a place."""
        return max(1, -(-size // self.alignment)) * self.alignment

    def take(self, size: int) -> int:
        """Return the start of the smallest gap that fits; the arena grows when there is none."""
        best = min(
            (gap for gap in self.gaps if gap[1] - gap[0] >= size),
            key=lambda gap: gap[1] - gap[0],
            default=None,
        )
        if best is None:
            return self._grow(size)
        at = bisect_left(self.gaps, best)
        start, end = best
        self.gaps[at : at + 1] = [(start + size, end)] if end - start > size else []
        return start

    def _grow(self, size: int) -> int:
        start = self.size
        if self.gaps and self.gaps[-1][1] == self.size:
            start = self.gaps.pop()[0]
        self.size = start + size
        return start

    def give_back(self, start: int, size: int) -> None:
        """Make a gap and join it with its neighbours."""
        end = start + size
        at = bisect_left(self.gaps, (start, end))
        if at < len(self.gaps) and self.gaps[at][0] == end:
            end = self.gaps.pop(at)[1]
        if at > 0 and self.gaps[at - 1][1] == start:
            at -= 1
            start = self.gaps.pop(at)[0]
        insort(self.gaps, (start, end))
