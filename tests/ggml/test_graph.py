"""The graph and the builder: order, leaves, long chains, and shapes as ggml makes them."""

import pytest

from app.errors import GraphError
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.ops import Op, UnaryOp
from app.ggml.tensor import Tensor, TensorFlag, new_tensor
from app.ggml.types import GGMLType
from tests.helpers.stock_graphs import SizedBuffer

F32 = GGMLType.F32


def test_tensors_come_after_what_they_depend_on() -> None:
    b = GraphBuilder()
    x = b.input(F32, [8, 2], "x")
    w = new_tensor(F32, [8, 4], "w")
    h = b.mul_mat(w, b.scale(x, 2.0))
    graph = b.finish(b.add(h, b.reshape(h, 4, 2)))
    ordered = graph.tensors()
    place = {id(tensor): i for i, tensor in enumerate(ordered)}
    assert len(place) == len(ordered) == 6
    for tensor in ordered:
        for source in (*tensor.src, tensor.view_src):
            assert source is None or place[id(source)] < place[id(tensor)]
    assert {leaf.name for leaf in graph.leaves()} == {"x", "w"}
    assert [node.op for node in graph.compute_nodes()] == [Op.SCALE, Op.MUL_MAT, Op.ADD]


def test_a_chain_of_a_hundred_thousand_nodes_is_walked() -> None:
    tensor = new_tensor(F32, [1])
    nodes = []
    for _ in range(100_000):
        tensor = Tensor(F32, tensor.ne, tensor.nb, Op.SQR, src=(tensor,))
        nodes.append(tensor)
    assert len(Graph([tensor]).tensors()) == len(Graph(nodes).tensors()) == 100_001


def test_a_cycle_is_walked_once() -> None:
    a, b = new_tensor(F32, [1]), new_tensor(F32, [1])
    a.src, b.src = (b,), (a, b)
    assert len(Graph([a, b]).tensors()) == 2


def test_finish_marks_outputs_and_gives_a_fresh_uid() -> None:
    b = GraphBuilder()
    first, second = b.finish(), b.finish(x := b.input(F32, [1], "x"))
    assert 0 != first.uid != second.uid
    assert x.flags == TensorFlag.INPUT | TensorFlag.OUTPUT


def test_a_view_of_a_view_points_at_the_root() -> None:
    b = GraphBuilder()
    root = new_tensor(F32, [8, 8], "root")
    root.buffer, root.offset = SizedBuffer(1024), 128
    view = b.view(b.view(root, [8, 4], [32], 64), [4, 2], [32], 16)
    assert view.view_src is root
    assert (view.view_offs, view.offset, view.buffer) == (80, 208, root.buffer)


def test_a_cast_names_itself_as_target() -> None:
    b = GraphBuilder()
    cast = b.cast(b.input(F32, [32, 2], "x"), GGMLType.Q8_0)
    assert cast.src[1] is cast
    assert cast.nb == (34, 34, 68, 68)


def test_permute_and_transpose_move_strides_with_dimensions() -> None:
    b = GraphBuilder()
    x = b.input(F32, [2, 3, 4, 5], "x")
    moved = b.permute(x, 0, 2, 1, 3)
    assert (moved.ne, moved.nb) == ((2, 4, 3, 5), (4, 24, 8, 96))
    turned = b.transpose(x)
    assert (turned.ne, turned.nb) == ((3, 2, 4, 5), (8, 4, 24, 96))


def test_a_wrong_model_fails_where_it_is_written() -> None:
    b = GraphBuilder()
    x = b.input(F32, [8, 2], "x")
    with pytest.raises(GraphError, match="MUL_MAT"):
        b.mul_mat(new_tensor(F32, [4, 4]), x)
    with pytest.raises(GraphError, match="ADD"):
        b.add(x, b.input(F32, [3], "y"))
    with pytest.raises(GraphError, match="RESHAPE 'x'"):
        b.reshape(x, 5)
    with pytest.raises(GraphError, match="gapless"):
        b.reshape(b.transpose(x), 16)
    with pytest.raises(GraphError, match="axes"):
        b.permute(x, 0, 0, 1, 2)
    with pytest.raises(GraphError, match="CPY: no shape rule"):
        b.node(Op.CPY, x)
    with pytest.raises(GraphError, match="source 1 is missing"):
        b.node(Op.ADD, x)
    assert b.unary(x, UnaryOp.SILU).ne == x.ne
