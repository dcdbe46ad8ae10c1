"""A compute graph: nodes in the order in which they run, and the leaves that they read.

`uid` is the key under which a device keeps a graph so that it can run again without being sent or
compiled again; it is unique in this process and 0 means "do not keep". A graph is not changed once
a device has seen it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from app.ggml.ops import VIEW_OPS
from app.ggml.tensor import Tensor

_uids = count(1)


def next_uid() -> int:
    """Return a graph key that this process has not used before."""
    return next(_uids)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Graph:
    """Nodes in execution order; identity is the object itself."""

    nodes: list[Tensor] = field(default_factory=list)
    uid: int = 0

    def tensors(self) -> list[Tensor]:
        """Every node, source and view source once, dependencies first."""
        seen: set[int] = set()
        ordered: list[Tensor] = []
        for node in self.nodes:
            _visit(node, seen, ordered)
        return ordered

    def leaves(self) -> list[Tensor]:
        """The tensors that no node makes: weights, caches and inputs."""
        made = {id(node) for node in self.nodes}
        return [tensor for tensor in self.tensors() if id(tensor) not in made]

    def compute_nodes(self) -> Iterator[Tensor]:
        """The nodes that do work, in order."""
        return (node for node in self.nodes if node.op not in VIEW_OPS)


def _visit(root: Tensor, seen: set[int], ordered: list[Tensor]) -> None:
    """Append `root` after everything that it depends on; iterative, since a hostile graph may be a
    long chain.
    """
    stack: list[tuple[Tensor, bool]] = [(root, False)]
    while stack:
        tensor, expanded = stack.pop()
        if expanded:
            ordered.append(tensor)
            continue
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        stack.append((tensor, True))
        before = [*tensor.src, tensor.view_src]
        stack.extend((source, False) for source in reversed(before) if source is not None)
