"""A client's graphs: from a description to a checked graph, and those kept for running again.

Version 8 keeps up to 1,024 graphs per device by the client's uid. A stock worker forgets all 1,024
when one more arrives, and so does every client. This one lets only the oldest go: whatever a client
has sent since it last forgot is there, also where it forgot earlier, as ours does after a failure.
Version 7 runs the last graph of each device again. Those before it are kept here all the same: one
that is sent once more, as each is for every token where matrices are cut, is not built again.
Freeing a buffer forgets everything.
"""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from app.devices.host_memory import host_memory
from app.errors import GraphError, OutOfMemoryError
from app.ggml.graph import Graph, next_uid
from app.ggml.ops import Op
from app.ggml.tensor import Tensor, TensorFlag
from app.ggml.verify import verify_graph
from app.rpc_backend.errors import RemoteProtocolError
from app.rpc_backend.wire.constants import KEPT_GRAPHS
from app.rpc_backend.wire.graph_codec import GraphCompute
from app.rpc_backend.wire.tensor import TENSOR_BYTES, WireTensor, WireTensors, to_tensor
from app.rpc_backend.worker.budget import Budget, Held
from app.rpc_backend.worker.buffers import BufferTable
from app.rpc_backend.worker.lanes import Event

# What a kept tensor takes, and the part of this machine's memory that those of one client may: a
# model of 80 layers has 4,000 tensors in each of up to 1,024 graphs.
_TENSOR_BYTES: Final = 800
_MEMORY_SHARE: Final = 8

MOST_REMEMBERED: Final = 64 << 20
"""Bytes that the graphs of a device may take that a client of version 7 does not know to be kept: a
token of 80 layers, cut, is 400 graphs of 10 MB in all.
"""
_COMPUTE: Final = int(TensorFlag.COMPUTE)
_ID_BYTES: Final = 8
_NODE_ID_BYTES: Final = 40


@dataclass(frozen=True, slots=True)
class Origin:
    """All that a graph was made of beside its nodes' ids: the ids of the tensors that came, and the
    descriptions of those that it reads. What is equal in these is an equal graph.
    """

    ids: bytes
    places: npt.NDArray[np.intp]
    descriptions: bytes

    def is_of(self, tensors: WireTensors) -> bool:
        """Whether the graph would be made of `tensors` as well."""
        return tensors.ids.tobytes() == self.ids and tensors.raw(self.places) == self.descriptions


@dataclass(frozen=True, slots=True)
class CheckedGraph:
    """A graph that may run, the events of all buffers that it touches, and the memory that it is
    worth while anybody has it.
    """

    graph: Graph
    events: tuple[Event, ...]
    n_tensors: int
    n_bytes: int
    held: Held
    origin: Origin | None
    """None where no graph is sent again that is kept."""


_Kept = dict[Hashable, CheckedGraph]


class GraphStore:
    """The graphs that one client may run again."""

    def __init__(self, major: int) -> None:
        self.by_uid = major >= 8
        self._n_tensors = 0
        self._graphs: defaultdict[int, _Kept] = defaultdict(dict)

    def __len__(self) -> int:
        return sum(map(len, self._graphs.values()))

    def keeps(self, uid: int) -> bool:
        """Whether a graph that came with `uid` will be kept."""
        return uid != 0 or not self.by_uid

    def keep(self, message: GraphCompute, graph: CheckedGraph) -> None:
        """Keep a graph, unless its uid says not to.

        Raises: OutOfMemoryError when all that are kept would take too much of this machine; they
        are forgotten then, as the client does.
        """
        if not self.keeps(message.uid):
            return
        graphs, key = self._graphs[message.device], self._key(message)
        self._forget(graphs, key)
        while graphs and self._is_full(graphs, graph.n_bytes):
            self._forget(graphs, next(iter(graphs)))
        n_tensors = self._n_tensors + graph.n_tensors
        if n_tensors > _most_tensors():
            self.forget_all()
            raise OutOfMemoryError(
                f"{n_tensors} tensors in graphs to be kept: expected up to {_most_tensors()}"
            )
        self._n_tensors = n_tensors
        graphs[key] = graph

    def _key(self, message: GraphCompute) -> Hashable:
        return message.uid if self.by_uid else message.node_ids

    def _is_full(self, graphs: _Kept, n_new: int) -> bool:
        """Whether the oldest must go for one more graph."""
        if len(graphs) >= KEPT_GRAPHS:
            return True
        n_bytes = sum(graph.n_bytes for graph in graphs.values())
        return not self.by_uid and n_bytes + n_new > MOST_REMEMBERED

    def _forget(self, graphs: _Kept, key: Hashable) -> None:
        gone = graphs.pop(key, None)
        self._n_tensors -= 0 if gone is None else gone.n_tensors

    def find(self, device: int, uid: int) -> CheckedGraph:
        """Return a kept graph.

        Raises: RemoteProtocolError.
        """
        graphs = self._graphs[device]
        graph = graphs.get(uid) if self.by_uid else next(reversed(graphs.values()), None)
        if graph is None:
            which = f"graph {uid}" if self.by_uid else "last graph"
            raise RemoteProtocolError(f"device {device} keeps no {which}")
        return graph

    def find_equal(self, message: GraphCompute) -> CheckedGraph | None:
        """Return what was made of an equal message, if it is kept, as the last graph of its device;
        nothing of the message is read for that.
        """
        graphs, key = self._graphs[message.device], self._key(message)
        graph = graphs.get(key)
        if graph is None or graph.origin is None or not graph.origin.is_of(_as_sent(message)):
            return None
        graphs[key] = graphs.pop(key)
        return graph

    def forget_all(self) -> None:
        """Forget every graph of every device."""
        self._graphs.clear()
        self._n_tensors = 0

    def forget_unknown(self) -> None:
        """Forget what a client of version 7 does not know to be kept."""
        for graphs in self._graphs.values():
            while len(graphs) > 1:
                self._forget(graphs, next(iter(graphs)))


@cache
def _most_tensors() -> int:
    return host_memory().total // (_MEMORY_SHARE * _TENSOR_BYTES)


def build_graph(
    message: GraphCompute, buffers: BufferTable, budget: Budget, store: GraphStore
) -> CheckedGraph:
    """Make a graph of what a client sent and verify it.

    Tensors on another device of this worker count as having no memory. Nodes that the client did
    not mark for computing are left out, as stock backends do.

    Raises: GraphError, UnsupportedError, RemoteProtocolError, OutOfMemoryError.
    """
    tensors, nodes = _as_sent(message), set(message.node_ids)
    needed = _needed(message, tensors, nodes)
    n_bytes = len(needed) * _TENSOR_BYTES
    if not store.by_uid:
        n_bytes += len(needed) * TENSOR_BYTES + len(tensors) * _ID_BYTES
        n_bytes += len(message.node_ids) * _NODE_ID_BYTES
    held = budget.hold(n_bytes, f"graph of {len(needed)} tensors")
    made: dict[int, Tensor] = {}
    marked: set[int] = set()
    events: dict[int, Event] = {}
    for wire in needed.values():
        tensor = _place(wire, message.device, buffers, events)
        made[wire.id] = tensor
        if wire.flags & _COMPUTE and wire.id in nodes:
            marked.add(wire.id)
            tensor.src = _sources(wire, made)
        if wire.view_src:
            tensor.view_src = _earlier(wire, wire.view_src, made)
    computed = [made[key] for key in message.node_ids if key in marked]
    graph = Graph(computed, next_uid() if store.keeps(message.uid) else 0)
    verify_graph(graph)
    origin = None if store.by_uid else _origin(tensors, needed)
    return CheckedGraph(graph, tuple(events.values()), len(made), n_bytes, held, origin)


def _as_sent(message: GraphCompute) -> WireTensors:
    assert isinstance(message.tensors, WireTensors)
    return message.tensors


def _needed(message: GraphCompute, tensors: WireTensors, nodes: set[int]) -> dict[int, WireTensor]:
    """Read the nodes and what they read, by place and in order; the rest is the history of earlier
    graphs, which can be a hundred times as long.
    """
    ids: list[int] = tensors.ids.tolist()
    places = dict(zip(ids, range(len(ids)), strict=True))
    if len(places) < len(ids) or 0 in places:
        _refuse_ids(tensors)
    for key in message.node_ids:
        if key not in places:
            raise GraphError(f"node id {key}: expected one of the {len(ids)} tensors")
    found: dict[int, WireTensor] = {}
    wanted = list(message.node_ids)
    while wanted:
        place = places.pop(wanted.pop(), None)
        if place is None:
            continue
        wire = found[place] = tensors[place]
        if wire.flags & _COMPUTE and wire.id in nodes:
            wanted += filter(None, wire.src)
        if wire.view_src:
            wanted.append(wire.view_src)
    return dict(sorted(found.items()))


def _refuse_ids(tensors: WireTensors) -> None:
    seen: set[int] = {0}
    for wire in tensors:
        if wire.id in seen:
            raise GraphError(f"tensor '{wire.label}': id {wire.id}: expected a fresh one, not 0")
        seen.add(wire.id)


def _origin(tensors: WireTensors, needed: dict[int, WireTensor]) -> Origin:
    places = np.fromiter(needed, np.intp, len(needed))
    return Origin(tensors.ids.tobytes(), places, tensors.raw(places))


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
