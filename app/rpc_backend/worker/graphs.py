"""A client's graphs: from a description to a checked graph, and those kept for running again.

Version 8 keeps up to 1,024 graphs per device by the client's uid; version 7 keeps the last graph of
each device. Freeing a buffer forgets everything. A stock worker forgets all 1,024 when one more
arrives, and so does every client. This one lets only the oldest go: whatever a client has sent
since it last forgot is there, also where it forgot earlier, as ours does after a failure.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import Final

from app.devices.host_memory import host_memory
from app.errors import GraphError, OutOfMemoryError
from app.ggml.graph import Graph, next_uid
from app.ggml.ops import Op
from app.ggml.tensor import Tensor, TensorFlag
from app.ggml.verify import verify_graph
from app.rpc_backend.errors import RemoteProtocolError
from app.rpc_backend.wire.constants import KEPT_GRAPHS
from app.rpc_backend.wire.graph_codec import GraphCompute
from app.rpc_backend.wire.tensor import WireTensor, to_tensor
from app.rpc_backend.worker.budget import Budget, Held
from app.rpc_backend.worker.buffers import BufferTable
from app.rpc_backend.worker.lanes import Event

# What a kept tensor takes, and the part of this machine's memory that those of one client may: a
# model of 80 layers has 4,000 tensors in each of up to 1,024 graphs.
_TENSOR_BYTES: Final = 800
_MEMORY_SHARE: Final = 8


@dataclass(frozen=True, slots=True)
class CheckedGraph:
    """A graph that may run, the events of all buffers that it touches, and the memory that it is
    worth while anybody has it.
    """

    graph: Graph
    events: tuple[Event, ...]
    n_tensors: int
    held: Held


class GraphStore:
    """The graphs that one client may run again."""

    def __init__(self, major: int) -> None:
        self._by_uid = major >= 8
        self._n_tensors = 0
        self._graphs: defaultdict[int, dict[int, CheckedGraph]] = defaultdict(dict)

    def __len__(self) -> int:
        return sum(map(len, self._graphs.values()))

    def keeps(self, uid: int) -> bool:
        """Whether a graph that came with `uid` will be kept."""
        return uid != 0 or not self._by_uid

    def keep(self, device: int, uid: int, graph: CheckedGraph) -> None:
        """Keep a graph, unless its uid says not to.

        Raises: OutOfMemoryError when all that are kept would take too much of this machine; they
        are forgotten then, as the client does.
        """
        if not self.keeps(uid):
            return
        graphs = self._graphs[device]
        self._forget(graphs, uid)
        if len(graphs) >= (KEPT_GRAPHS if self._by_uid else 1):
            self._forget(graphs, next(iter(graphs)))
        n_tensors = self._n_tensors + graph.n_tensors
        if n_tensors > _most_tensors():
            self.forget_all()
            raise OutOfMemoryError(
                f"{n_tensors} tensors in graphs to be kept: expected up to {_most_tensors()}"
            )
        self._n_tensors = n_tensors
        graphs[uid] = graph

    def _forget(self, graphs: dict[int, CheckedGraph], uid: int) -> None:
        gone = graphs.pop(uid, None)
        self._n_tensors -= 0 if gone is None else gone.n_tensors

    def find(self, device: int, uid: int) -> CheckedGraph:
        """Return a kept graph.

        Raises: RemoteProtocolError.
        """
        graph = self._graphs[device].get(uid)
        if graph is None:
            which = f"graph {uid}" if self._by_uid else "last graph"
            raise RemoteProtocolError(f"device {device} keeps no {which}")
        return graph

    def forget_all(self) -> None:
        """Forget every graph of every device."""
        self._graphs.clear()
        self._n_tensors = 0


@cache
def _most_tensors() -> int:
    return host_memory().total // (_MEMORY_SHARE * _TENSOR_BYTES)


def build_graph(
    message: GraphCompute, buffers: BufferTable, budget: Budget, *, keep: bool
) -> CheckedGraph:
    """Make a graph of what a client sent and verify it.

    Tensors on another device of this worker count as having no memory. Nodes that the client did
    not mark for computing are left out, as stock backends do.

    Raises: GraphError, UnsupportedError, RemoteProtocolError, OutOfMemoryError.
    """
    _check_ids(message)
    by_id = {wire.id: wire for wire in message.tensors}
    marked = {key for key in message.node_ids if _node(key, by_id).flags & TensorFlag.COMPUTE}
    needed = _needed(message, marked) & by_id.keys()
    held = budget.hold(len(needed) * _TENSOR_BYTES, f"graph of {len(needed)} tensors")
    made: dict[int, Tensor] = {}
    events: dict[int, Event] = {}
    for wire in message.tensors:
        if wire.id not in needed:
            continue
        tensor = _place(wire, message.device, buffers, events)
        made[wire.id] = tensor
        if wire.id in marked:
            tensor.src = _sources(wire, made)
        if wire.view_src:
            tensor.view_src = _earlier(wire, wire.view_src, made)
    nodes = [made[key] for key in message.node_ids if key in marked]
    graph = Graph(nodes, next_uid() if keep else 0)
    verify_graph(graph)
    return CheckedGraph(graph, tuple(events.values()), len(made), held)


def _place(wire: WireTensor, device: int, buffers: BufferTable, events: dict[int, Event]) -> Tensor:
    """Make a tensor, and note the event of its buffer under the buffer's handle."""
    if wire.buffer == 0:
        if wire.data != 0:
            raise GraphError(f"tensor '{wire.label}': data {wire.data:#x} without a buffer")
        return to_tensor(wire)
    held, tensor, _ = buffers.locate(wire)
    if held.device_index == device:
        events[held.handle] = held.event
    else:
        tensor.buffer = None
    return tensor


def _sources(wire: WireTensor, made: dict[int, Tensor]) -> tuple[Tensor | None, ...]:
    """Look the sources up; only a cast may name itself, and trailing gaps are dropped."""
    n = len(wire.src)
    while n and wire.src[n - 1] == 0:
        n -= 1
    return tuple(_earlier(wire, key, made) if key else None for key in wire.src[:n])


def _earlier(wire: WireTensor, key: int, made: dict[int, Tensor]) -> Tensor:
    found = made.get(key)
    if found is None or (key == wire.id and (wire.op != Op.CPY or key == wire.view_src)):
        raise GraphError(f"tensor '{wire.label}': source id {key}: expected a tensor listed before")
    return found


def _check_ids(message: GraphCompute) -> None:
    seen: set[int] = {0}
    for wire in message.tensors:
        if wire.id in seen:
            raise GraphError(f"tensor '{wire.label}': id {wire.id}: expected a fresh one, not 0")
        seen.add(wire.id)


def _needed(message: GraphCompute, marked: set[int]) -> set[int]:
    """Ids of the nodes and of what they read; the rest is the history of earlier graphs, which can
    be a hundred times as long.
    """
    needed = set(message.node_ids)
    for wire in reversed(message.tensors):
        if wire.id not in needed:
            continue
        if wire.id in marked:
            needed.update(wire.src)
        needed.add(wire.view_src)
    return needed


def _node(key: int, by_id: dict[int, WireTensor]) -> WireTensor:
    found = by_id.get(key)
    if found is None:
        raise GraphError(f"node id {key}: expected one of the {len(by_id)} tensors")
    return found
