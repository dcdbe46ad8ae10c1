"""The compiled graphs of one device, by graph object: those that nobody holds any more are gone.

Both executors have one. What is kept is bounded by the nodes in it, so that many small graphs fit
as well as a few large ones: a client that cuts matrices over workers runs hundreds of a few nodes
each for every token. Those that ran the longest time ago go first.
"""

from collections.abc import Set
from typing import Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from app.ggml.graph import Graph
from app.ggml.tensor import Buffer

MOST_PLANS: Final = 1024
MOST_NODES: Final = 1 << 17


class Plan(Protocol):
    """What is kept of a graph."""

    last_run: int
    """Number of the device's run in which it was last used."""

    @property
    def buffers(self) -> Set[Buffer]:
        """Every buffer that it touches."""


P = TypeVar("P", bound=Plan)


class Plans(WeakKeyDictionary[Graph, P]):
    """Used under the executor's lock."""

    def add(self, graph: Graph, plan: P) -> None:
        """Keep a plan, and let go of others while there are too many."""
        newest_first = sorted(self.items(), key=lambda item: -item[1].last_run)
        n_nodes = len(graph.nodes) + sum(len(kept.nodes) for kept, _ in newest_first)
        while newest_first and (len(newest_first) >= MOST_PLANS or n_nodes > MOST_NODES):
            oldest, _ = newest_first.pop()
            n_nodes -= len(oldest.nodes)
            del self[oldest]
        self[graph] = plan

    def forget(self, buffer: Buffer) -> None:
        """Drop the plans that touch a buffer."""
        for graph in [graph for graph, plan in self.items() if buffer in plan.buffers]:
            del self[graph]
