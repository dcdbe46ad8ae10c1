"""A graph on the wire: what a worker reads is what the builder made."""

import struct

import numpy as np
import pytest

from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.ops import Op
from app.ggml.tensor import Tensor, TensorFlag
from app.ggml.types import GGMLType
from app.rpc_backend.errors import RemoteProtocolError
from app.rpc_backend.wire.graph_codec import GraphCompute, GraphLayout, describe_graph
from app.rpc_backend.wire.tensor import NULL_TENSOR, Place
from tests.helpers.rpc_frames import TENSOR, u32, u64
from tests.helpers.work import lines_run

LAYOUTS = {7: GraphLayout(False), 8: GraphLayout(True)}


def place_of(tensor: Tensor) -> Place:
    return Place(3, 4096 + tensor.offset)


def diamond() -> Graph:
    b = GraphBuilder()
    x = b.input(GGMLType.F32, (8, 4), "x")
    y = b.add(x, x)
    view = b.reshape(y, 32)
    return b.finish(b.mul(b.scale(view, 2.0), view))


def test_dependencies_come_first_and_ids_name_them() -> None:
    graph = diamond()
    message = describe_graph(graph, 1, place_of)
    seen: set[int] = set()
    for tensor in message.tensors:
        assert tensor.id not in seen
        assert {key for key in (*tensor.src, tensor.view_src) if key} <= seen
        seen.add(tensor.id)
    by_id = {tensor.id: tensor for tensor in message.tensors}
    ops = [Op(by_id[key].op) for key in message.node_ids]
    assert ops == [node.op for node in graph.nodes]
    assert (message.device, message.uid) == (1, graph.uid)


def test_nodes_are_marked_for_computing_and_count_their_uses() -> None:
    message = describe_graph(diamond(), 0, place_of)
    by_id = {tensor.id: tensor for tensor in message.tensors}
    leaf = by_id[1]
    assert leaf.op == Op.NONE
    assert not leaf.flags & TensorFlag.COMPUTE
    assert leaf.use_count == 2
    nodes = [by_id[key] for key in message.node_ids]
    assert all(node.flags & TensorFlag.COMPUTE for node in nodes)
    assert [node.use_count for node in nodes] == [1, 2, 1, 0]
    assert nodes[-1].flags & TensorFlag.OUTPUT


def test_a_cast_names_itself_as_its_target() -> None:
    b = GraphBuilder()
    graph = b.finish(b.cast(b.input(GGMLType.F32, (4,), "x"), GGMLType.F16))
    cast = describe_graph(graph, 0, place_of).tensors[-1]
    assert cast.src[:2] == (1, cast.id)


@pytest.mark.parametrize("version", LAYOUTS)
def test_packing_puts_every_part_at_its_place(version: int) -> None:
    message = describe_graph(diamond(), 2, place_of)
    body = LAYOUTS[version].pack(message)
    head = u32(2) + (u64(message.uid) if version == 8 else b"")
    n = len(message.tensors)
    assert body.startswith(head + u32(4) + u64(*message.node_ids) + u32(n))
    records = np.frombuffer(body[-296 * n :], TENSOR)
    assert records["id"].tolist() == [tensor.id for tensor in message.tensors]
    back = LAYOUTS[version].unpack(body)
    assert back.tensors == message.tensors
    assert back.uid == (message.uid if version == 8 else 0)


@pytest.mark.parametrize("version", LAYOUTS)
def test_counts_that_do_not_fit_the_length_are_refused(version: int) -> None:
    layout = LAYOUTS[version]
    message = GraphCompute(0, (1,), (NULL_TENSOR._replace(id=1),))
    body = layout.pack(message)
    at = 12 if version == 8 else 4
    huge = struct.pack("<I", 2**32 - 1)
    for broken in (
        body[:-1],
        body + b"\0",
        body[:at] + huge + body[at + 4 :],
        body[: at + 12] + huge + body[at + 16 :],
    ):
        with pytest.raises(RemoteProtocolError, match=r"expected|fit"):
            layout.unpack(broken)


def test_a_graph_of_1400_tensors_takes_little_time() -> None:
    b = GraphBuilder()
    x = b.input(GGMLType.F32, (64, 4), "x")
    for _ in range(1399):
        x = b.scale(x, 1.0)
    graph = b.finish(x)

    def encode() -> bytes:
        return LAYOUTS[8].pack(describe_graph(graph, 0, place_of))

    body = encode()
    # Measured: 92 and 20 lines for each, a few milliseconds in all.
    assert lines_run(encode) < 120 * 1400
    assert lines_run(lambda: LAYOUTS[8].unpack(body)) < 30 * 1400
