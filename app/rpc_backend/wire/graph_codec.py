"""Graph ↔ body of GRAPH_COMPUTE.

A body is: device, in version 8 the uid, the ids of the nodes in the order in which they run, then
every node, source and view source once, dependencies first. Reading one checks counts, ids and
order; whether the graph is legal is the verifier's question (`app.ggml.verify`). Layout: ggml-rpc
at llama.cpp b11434 and b11739.
"""

import struct
from collections import Counter
from dataclasses import dataclass
from typing import Final

from app.ggml.graph import Graph
from app.ggml.tensor import MAX_SRC, Tensor, TensorFlag
from app.rpc_backend.errors import RemoteProtocolError
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.wire.tensor import (
    TENSOR_BYTES,
    PlaceOf,
    WireTensor,
    WireTensors,
    pack_tensor,
    to_wire,
)

_COUNT: Final = struct.Struct("<I")
_ID_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class GraphCompute:
    """Run a graph; from version 8 on it is kept under `uid` unless that is 0."""

    device: int
    node_ids: tuple[int, ...]
    tensors: tuple[WireTensor, ...] | WireTensors
    uid: int = 0


class GraphLayout:
    """Packs and unpacks GRAPH_COMPUTE, with or without a uid."""

    def __init__(self, has_uid: bool) -> None:
        self._has_uid = has_uid
        self._head = struct.Struct("<IQI" if has_uid else "<II")

    @property
    def size(self) -> int:
        """Bytes of the smallest body: an empty graph."""
        return self._head.size + _COUNT.size

    def pack(self, message: GraphCompute) -> bytes:
        """Pack a graph."""
        ids, n_tensors = message.node_ids, len(message.tensors)
        uid = (message.uid,) if self._has_uid else ()
        return b"".join(
            (
                self._head.pack(message.device, *uid, len(ids)),
                struct.pack(f"<{len(ids)}Q", *ids),
                _COUNT.pack(n_tensors),
                *map(pack_tensor, message.tensors),
            )
        )

    def unpack(self, body: Body) -> GraphCompute:
        """Unpack a graph.

        Raises: RemoteProtocolError when the counts do not add up to the length.
        """
        device, *uid, n_nodes = self._head.unpack_from(body)
        at = self._head.size + n_nodes * _ID_BYTES
        if at + _COUNT.size > len(body):
            raise RemoteProtocolError(f"{n_nodes} nodes do not fit into {len(body)} bytes")
        ids = struct.unpack_from(f"<{n_nodes}Q", body, self._head.size)
        (n_tensors,) = _COUNT.unpack_from(body, at)
        at += _COUNT.size
        if at + n_tensors * TENSOR_BYTES != len(body):
            raise RemoteProtocolError(
                f"{n_nodes} nodes and {n_tensors} tensors in {len(body)} bytes: "
                f"expected {at + n_tensors * TENSOR_BYTES}"
            )
        return GraphCompute(device, ids, WireTensors(body, at), uid[0] if uid else 0)


def describe_graph(graph: Graph, device: int, place_of: PlaceOf) -> GraphCompute:
    """Describe a graph for a worker on which `place_of` says where each tensor lies.

    Nodes are marked as "to be computed" and carry the number of their uses, without which stock
    workers skip them or cannot fuse them.

    Raises: GraphError when a tensor does not fit into the protocol.
    """
    ordered = graph.tensors()
    ids = {id(tensor): key for key, tensor in enumerate(ordered, 1)}
    uses = Counter(id(source) for tensor in ordered for source in tensor.src if source is not None)
    nodes = {id(node) for node in graph.nodes}
    tensors = tuple(
        to_wire(
            tensor,
            place_of(tensor),
            key=key,
            src=_source_ids(tensor, ids),
            view_src=0 if tensor.view_src is None else ids[id(tensor.view_src)],
            flags=TensorFlag.COMPUTE if id(tensor) in nodes else 0,
            use_count=uses[id(tensor)],
        )
        for key, tensor in enumerate(ordered, 1)
    )
    return GraphCompute(device, tuple(ids[id(node)] for node in graph.nodes), tensors, graph.uid)


def _source_ids(tensor: Tensor, ids: dict[int, int]) -> tuple[int, ...]:
    known = [0 if source is None else ids[id(source)] for source in tensor.src]
    return (*known, *(0,) * (MAX_SRC - len(known)))
