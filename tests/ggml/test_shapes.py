"""Shape rules: right results for what ggml builds, errors for what does not fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import GraphError
from app.ggml.op_params import Params, RopeParams
from app.ggml.ops import Op
from app.ggml.shape_checks import can_repeat
from app.ggml.shapes import INFER, infer
from app.ggml.tensor import Shape, Tensor, new_tensor
from app.ggml.types import GGMLType
from tests.helpers.stock_graphs import NAMES, stock_graph

F32, F16, I32, I64 = GGMLType.F32, GGMLType.F16, GGMLType.I32, GGMLType.I64


def t(*ne: int, type_: GGMLType = F32) -> Tensor:
    """A leaf [ne]."""
    return new_tensor(type_, ne)


def rope(n_dims: int = 4, n_offs: int = 0) -> Params:
    """Rotation parameters."""
    return RopeParams(n_dims, 0, 0, 1e4, 1, 0, 1, 0, 0, n_offs).pack()


@pytest.mark.parametrize("name", NAMES)
def test_rules_agree_with_every_node_of_a_stock_graph(name: str) -> None:
    nodes = [node for node in stock_graph(name).nodes if node.op in INFER]
    assert len(nodes) > 20
    for node in nodes:
        assert infer(node.op, node.src, node.params) == (node.type, node.ne), node.name


@given(st.tuples(*[st.integers(0, 3)] * 4), st.tuples(*[st.integers(0, 6)] * 4))
def test_can_repeat_means_that_tiling_reaches_the_shape(small: Shape, large: Shape) -> None:
    if 0 in small:
        assert can_repeat(small, large) == (0 in large)
        return
    times = [b // s for s, b in zip(small, large, strict=True)]
    assert can_repeat(small, large) == (np.tile(np.zeros(small), times).shape == large)


GOOD = [
    (Op.ADD, (t(8, 4), t(8)), Params(), F32, (8, 4, 1, 1)),
    (Op.ADD, (t(8, 0), t(8, 0)), Params(), F32, (8, 0, 1, 1)),
    (Op.MUL_MAT, (t(8, 4, 2), t(8, 3, 4)), Params(), F32, (4, 3, 4, 1)),
    (Op.MUL_MAT, (t(8, 4), t(8, 0)), Params(), F32, (4, 0, 1, 1)),
    (Op.GET_ROWS, (t(64, 9, type_=GGMLType.Q8_0), t(3, type_=I32)), Params(), F32, (64, 3, 1, 1)),
    (Op.GET_ROWS, (t(1, 9, 5, type_=I32), t(2, 5, type_=I32)), Params(), I32, (1, 2, 5, 1)),
    (Op.SET_ROWS, (t(8, 3), t(3, type_=I64), t(8, 9, type_=F16)), Params(), F16, (8, 9, 1, 1)),
    (Op.SET_ROWS, (t(1, 24), t(24, type_=I64), t(1, 99, type_=F16)), Params(), F16, (1, 99, 1, 1)),
    (Op.ROPE, (t(8, 2, 5), t(5, type_=I32), t(2)), rope(), F32, (8, 2, 5, 1)),
    (Op.SOFT_MAX, (t(8, 3, 4), t(8, 32, type_=F16), t(4)), Params(), F32, (8, 3, 4, 1)),
    (
        Op.FLASH_ATTN_EXT,
        (t(8, 3, 4), t(8, 9, 2, type_=F16), t(6, 9, 2, type_=F16), t(9, 32, type_=F16), t(4)),
        Params(),
        F32,
        (6, 4, 3, 1),
    ),
    (Op.GLU, (t(8, 3),), Params(), F32, (4, 3, 1, 1)),
    (Op.GLU, (t(8, 3), t(8, 3)), Params(), F32, (8, 3, 1, 1)),
    (Op.GLU, (t(7, 3),), Params(), F32, (3, 3, 1, 1)),
    (Op.SUM_ROWS, (t(8, 3),), Params(), F32, (1, 3, 1, 1)),
    (Op.MEAN, (t(8, 3, type_=F16),), Params(), F32, (1, 3, 1, 1)),
    (Op.CONCAT, (t(8, 3), t(8, 5)), Params.pack("i", 1), F32, (8, 8, 1, 1)),
]


@pytest.mark.parametrize(("op", "sources", "params", "type_", "ne"), GOOD)
def test_a_result_has_the_type_and_shape_that_ggml_gives_it(
    op: Op, sources: tuple[Tensor, ...], params: Params, type_: GGMLType, ne: Shape
) -> None:
    assert infer(op, sources, params) == (type_, ne)


BAD = [
    (Op.ADD, (t(8, 4), t(3)), Params()),
    (Op.ADD, (t(8, 4), t(8, 0)), Params()),
    (Op.MUL_MAT, (t(8, 4), t(7, 4)), Params()),
    (Op.MUL_MAT, (t(8, 4, 2), t(8, 4, 3)), Params()),
    (Op.MUL_MAT, (t(8, 4, 0), t(8, 4, 1)), Params()),
    (Op.GET_ROWS, (t(8, 4), t(3)), Params()),
    (Op.GET_ROWS, (t(8, 4), t(3, 2, type_=I32)), Params()),
    (Op.SET_ROWS, (t(8, 3), t(2, type_=I64), t(8, 9)), Params()),
    (Op.SET_ROWS, (t(8, 3), t(3, type_=I64), t(7, 9)), Params()),
    (Op.SET_ROWS, (t(8, 3), t(3), t(8, 9)), Params()),
    (Op.SET_ROWS, (t(8, 3, type_=I32), t(3, type_=I64), t(8, 9)), Params()),
    (Op.SET_ROWS, (t(8, 3, 2), t(3, 0, type_=I64), t(8, 9, 2)), Params()),
    (Op.ROPE, (t(8, 2, 5), t(4, type_=I32)), rope()),
    (Op.ROPE, (t(8, 2, 5), t(5)), rope()),
    (Op.ROPE, (t(8, 2, 5), t(5, type_=I32)), rope(10)),
    (Op.ROPE, (t(8, 2, 5), t(5, type_=I32)), rope(3)),
    (Op.ROPE, (t(8, 2, 5), t(5, type_=I32)), rope(0)),
    (Op.ROPE, (t(8, 2, 5), t(5, type_=I32)), rope(4, -2)),
    (Op.ROPE, (t(8, 2, 5), t(5, type_=I32)), rope(4, 6)),
    (Op.ROPE, (t(8, 2, 5), t(5, type_=I32), t(1)), rope()),
    (Op.SOFT_MAX, (t(8, 3), t(8, 2)), Params()),
    (Op.SOFT_MAX, (t(8, 3), t(7, 3)), Params()),
    (Op.SOFT_MAX, (t(8, 3), t(8, 3, type_=I32)), Params()),
    (Op.SOFT_MAX, (t(8, 3, 4), None, t(3)), Params()),
    (Op.FLASH_ATTN_EXT, (t(8, 3, 4), t(8, 9, 3), t(8, 9, 3)), Params()),
    (Op.FLASH_ATTN_EXT, (t(8, 3, 4), t(8, 9, 2), t(8, 7, 2)), Params()),
    (Op.FLASH_ATTN_EXT, (t(8, 3, 4), t(8, 9, 0), t(8, 9, 0)), Params()),
    (Op.FLASH_ATTN_EXT, (t(8, 3, 4), t(8, 9, 2), t(8, 9, 2), t(9, 2, type_=F16)), Params()),
    (Op.FLASH_ATTN_EXT, (t(8, 3, 4), t(8, 9, 2), t(8, 9, 2), t(9, 3)), Params()),
    (Op.FLASH_ATTN_EXT, (t(8, 3, 4), t(8, 9, 2), t(8, 9, 2), None, t(3)), Params()),
    (Op.GLU, (t(8, 3), t(8, 4)), Params()),
    (Op.CONCAT, (t(8, 3), t(7, 5)), Params.pack("i", 1)),
    (Op.CONCAT, (t(8, 3), t(8, 5)), Params.pack("i", 4)),
    (Op.CONCAT, (t(8, 3), t(8, 5)), Params.pack("i", -1)),
]


@pytest.mark.parametrize(("op", "sources", "params"), BAD)
def test_sources_that_do_not_fit_are_refused_by_operation(
    op: Op, sources: tuple[Tensor | None, ...], params: Params
) -> None:
    with pytest.raises(GraphError, match=f"^{op.name}: .*expected"):
        infer(op, sources, params)


@pytest.mark.parametrize("op", sorted(INFER.keys() - {Op.ARANGE}))
def test_no_other_operation_comes_without_sources(op: Op) -> None:
    with pytest.raises(GraphError, match=rf"{op.name}: source \d is missing"):
        infer(op, (), Params())
