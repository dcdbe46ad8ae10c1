"""Shapes and places of operations that move, make or count elements: right for what ggml builds, an
error for what does not fit, whatever the numbers.
"""

import math

import pytest

from app.errors import GraphError
from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.shapes import infer
from app.ggml.tensor import Shape, Tensor, new_tensor
from app.ggml.types import GGMLType

F32, F16, I32, I64 = GGMLType.F32, GGMLType.F16, GGMLType.I32, GGMLType.I64
LEAST, MOST = -(2**31), 2**31 - 1
INF, NAN = math.inf, math.nan


def t(*ne: int, type_: GGMLType = F32) -> Tensor:
    """A leaf [ne]."""
    return new_tensor(type_, ne)


def ints(*values: int) -> Params:
    return Params.pack(f"{len(values)}i", *values)


def floats(*values: float) -> Params:
    return Params.pack(f"{len(values)}f", *values)


def _transposed(*ne: int) -> Tensor:
    a = t(*ne)
    a.ne, a.nb = (a.ne[1], a.ne[0], *a.ne[2:]), (a.nb[1], a.nb[0], *a.nb[2:])
    return a


GOOD = [
    (Op.ACC, (t(8, 4), t(2, 2)), ints(32, 128, 128, 8), F32, (8, 4, 1, 1)),
    (Op.SET, (t(8, 4), t(0, 2)), ints(0, 0, 0, -9), F32, (8, 4, 1, 1)),
    (Op.DIAG, (t(5, 1, 2),), Params(), F32, (5, 5, 2, 1)),
    (Op.PAD, (t(3, 2),), ints(1, 2, 0, 0, 0, 1, 0, 0), F32, (6, 2, 2, 1)),
    (Op.PAD, (t(3, 2),), ints(1, 2, 0, 0, 0, 1, 0, 0, 1), F32, (6, 2, 2, 1)),
    (Op.PAD_REFLECT_1D, (t(5, 2),), ints(4, 1), F32, (10, 2, 1, 1)),
    (Op.ROLL, (t(5, 2),), ints(-4, 1), F32, (5, 2, 1, 1)),
    (Op.ARANGE, (), floats(0.0, 1.05, 0.5), F32, (3, 1, 1, 1)),
    (Op.TIMESTEP_EMBEDDING, (t(7),), ints(9, 10000), F32, (9, 7, 1, 1)),
    (Op.OUT_PROD, (t(5, 3, 2), t(4, 3, 6)), Params(), F32, (5, 4, 6, 1)),
    (Op.COUNT_EQUAL, (t(5, 3, type_=I32), t(5, 3, type_=I32)), Params(), I64, (1, 1, 1, 1)),
    (Op.GROUP_NORM, (t(5, 3, 4),), Params.pack("if", 2, 1e-5), F32, (5, 3, 4, 1)),
]


@pytest.mark.parametrize(("op", "sources", "params", "type_", "ne"), GOOD)
def test_a_result_has_the_type_and_shape_that_ggml_gives_it(
    op: Op, sources: tuple[Tensor, ...], params: Params, type_: GGMLType, ne: Shape
) -> None:
    assert infer(op, sources, params) == (type_, ne)


BAD = [
    (Op.ACC, (t(8, 4), t(2, 2, type_=F16)), ints(32, 128, 128, 8), "one plain type"),
    (Op.SET, (_transposed(8, 4), t(2, 2)), ints(32, 128, 128, 8), "no gaps"),
    *(
        (Op.SET, (t(8, 4), t(2, 2)), ints(*place), "apart inside of 128 bytes")
        for place in (
            *((0, 0, 0, 0), (4, 0, 0, 0), (-32, 0, 0, 64), (32, 0, 0, -4), (32, 0, 0, 92)),
            *((32, 0, 0, 6), (30, 0, 0, 0), (MOST, 0, 0, 0), (LEAST, 0, 0, 0), (32, 0, 0, MOST)),
        )
    ),
    (Op.SET, (t(8, 4), t(2, 1, 2)), ints(32, 4, 0, 0), "apart"),
    (Op.DIAG, (t(5, 2),), Params(), "one row"),
    (Op.TRI, (t(5, 4),), Params(), "square"),
    (Op.TRI, (t(5, 5),), ints(4), "kind is 4, expected 0 to 3"),
    (Op.TRI, (t(5, 5),), ints(-1), "kind is -1"),
    (Op.PAD, (t(3, 2),), ints(1, -1), "least padding is -1, expected 0 or more"),
    (Op.PAD, (t(3, 2),), ints(0, 0, 0, LEAST), "least padding"),
    (Op.PAD, (t(3, 0),), ints(0, 0, 0, 2, 0, 0, 0, 0, 1), "elements to repeat"),
    (Op.PAD, (t(3, 2),), ints(0, 0, 0, 0, 0, 0, 0, 0, 2), "circular flag is 2"),
    (Op.PAD_REFLECT_1D, (t(5, 2),), ints(5, 0), r"paddings \(5, 0\)"),
    (Op.PAD_REFLECT_1D, (t(5, 2),), ints(0, -1), "paddings"),
    (Op.ROLL, (t(5, 2),), ints(5), "shifts"),
    (Op.ROLL, (t(5, 2),), ints(0, LEAST), "shifts"),
    *(
        (Op.ARANGE, (), floats(*numbers), "ARANGE: the (stop|number of steps)")
        for numbers in (
            *((0, 0, 1), (1, 0, 1), (0, 1, 0), (0, 1, -1), (0, 1, 1e-30), (0, INF, 1)),
            *((NAN, 1, 1), (0, NAN, 1), (0, 1, NAN), (0, 1, INF), (-INF, INF, INF)),
        )
    ),
    (Op.TIMESTEP_EMBEDDING, (t(7),), ints(0, 10), "dim is 0"),
    (Op.TIMESTEP_EMBEDDING, (t(7),), ints(-1, 10), "dim is -1"),
    (Op.TIMESTEP_EMBEDDING, (t(7),), ints(4, 0), "max_period is 0"),
    (Op.GROUP_NORM, (t(5, 3, 4),), Params.pack("if", 0, 1e-5), "n_groups is 0"),
    (Op.GROUP_NORM, (t(5, 3, 4),), Params.pack("if", 2, NAN), "eps is nan"),
    (Op.OUT_PROD, (t(5, 3), t(4, 2)), Params(), r"equal ne\[1\]"),
    (Op.OUT_PROD, (t(5, 3, 4), t(4, 3, 2)), Params(), "repeatable"),
    (Op.COUNT_EQUAL, (t(5, 3, type_=I32), t(3, 5, type_=I32)), Params(), "equal shapes"),
    (Op.CUMSUM, (), Params(), "source 0 is missing"),
]


@pytest.mark.parametrize(("op", "sources", "params", "reason"), BAD)
def test_what_does_not_fit_is_refused(
    op: Op, sources: tuple[Tensor, ...], params: Params, reason: str
) -> None:
    with pytest.raises(GraphError, match=reason):
        infer(op, sources, params)
