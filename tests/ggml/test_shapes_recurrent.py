"""Shape rules of recurrent operations: what does not fit is refused by name. That what fits passes
is shown by running it (tests/kernels).
"""

import math

import pytest

from app.errors import GraphError
from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.shapes import infer
from app.ggml.tensor import Tensor, contiguous_strides, new_tensor
from app.ggml.types import GGMLType

F16, I32 = GGMLType.F16, GGMLType.I32
ONE = Params.pack("i", 1)


def t(*ne: int, type_: GGMLType = GGMLType.F32) -> Tensor:
    """A leaf [ne]."""
    return new_tensor(type_, ne)


def gaps(*ne: int) -> Tensor:
    """A leaf [ne] whose rows are twice as far apart as they are long."""
    tensor = new_tensor(GGMLType.F32, ne)
    nb = tensor.nb
    tensor.nb = (nb[0], 2 * nb[1], 2 * nb[2], 2 * nb[3])
    return tensor


def with_change(sources: tuple[Tensor, ...], index: int, to: Tensor) -> tuple[Tensor, ...]:
    """The sources with one of them replaced."""
    return (*sources[:index], to, *sources[index + 1 :])


# Five states, of which three are used; two heads of three dimensions, four tokens.
SCAN = (
    t(8, 3, 2, 5),
    t(3, 2, 4, 3),
    t(2, 4, 3),
    t(1, 2),
    t(8, 1, 4, 3),
    t(8, 1, 4, 3),
    t(3, type_=I32),
)
WKV6 = (*[t(4, 2, 6)] * 3, t(4, 2), t(4, 2, 6), t(32, 3))
WKV7 = (*[t(4, 2, 6)] * 6, t(32, 3))
LINEAR = (*[t(4, 2, 6)] * 4, t(32, 3))
DELTA = (
    t(4, 1, 6, 1),
    t(4, 2, 6, 3),
    t(4, 2, 6, 3),
    t(1, 2, 6, 3),
    t(1, 2, 6, 3),
    t(4, 4, 2, 3),
)
INDEXER = (t(8, 2, 3, 4), t(8, 1, 9, 4), t(2, 3, 1, 4), t(9, 3, 1, 2, type_=F16))
COMB = (t(24, 5), t(3), t(24))
POST = (t(8, 5), t(8, 4, 5), t(4, 5), t(4, 4, 5))
ROUNDS = Params.pack("fi", 1e-6, 20)

GOOD = [
    (Op.SSM_SCAN, SCAN, ONE, (72 + 144, 1, 1, 1)),
    (Op.RWKV_WKV6, WKV6, Params(), (8, 6 + 12, 1, 1)),
    (Op.RWKV_WKV7, WKV7, Params(), (8, 6 + 12, 1, 1)),
    (Op.GATED_LINEAR_ATTN, LINEAR, Params(), (8, 6 + 12, 1, 1)),
    (Op.GATED_DELTA_NET, DELTA, Params.pack("i", 2), (8, 18 + 24, 1, 1)),
    (Op.LIGHTNING_INDEXER, INDEXER, Params(), (9, 3, 1, 4)),
    (Op.DSV4_HC_COMB, COMB, ROUNDS, (4, 4, 5, 1)),
    (Op.DSV4_HC_POST, POST, Params(), (8, 4, 5, 1)),
]


@pytest.mark.parametrize(("op", "sources", "params", "ne"), GOOD)
def test_a_result_holds_what_tokens_give_and_the_states(
    op: Op, sources: tuple[Tensor, ...], params: Params, ne: tuple[int, ...]
) -> None:
    assert infer(op, sources, params) == (GGMLType.F32, ne)


BAD = [
    (Op.SSM_CONV, (t(2, 5, 1), t(4, 5)), Params()),
    (Op.SSM_CONV, (t(6, 5, 1), t(0, 5)), Params()),
    (Op.SSM_CONV, (t(6, 4, 1), t(4, 5)), Params()),
    (Op.SSM_CONV, (t(6, 5, 1, 2), t(4, 5)), Params()),
    *[(Op.SSM_SCAN, SCAN, Params.pack("i", k)) for k in (0, -1, -(2**31))],
    (Op.SSM_SCAN, with_change(SCAN, 3, t(8, 2)), Params.pack("i", 2)),
    (Op.SSM_SCAN, with_change(SCAN, 3, t(7, 2)), ONE),
    (Op.SSM_SCAN, with_change(SCAN, 0, t(8, 3, 3, 5)), ONE),
    (Op.SSM_SCAN, with_change(SCAN, 0, gaps(8, 3, 2, 5)), ONE),
    (Op.SSM_SCAN, with_change(SCAN, 2, t(2, 4, 2)), ONE),
    (Op.SSM_SCAN, with_change(SCAN, 4, t(8, 0, 4, 3)), ONE),
    (Op.SSM_SCAN, with_change(SCAN, 5, t(8, 2, 4, 3)), ONE),
    (Op.SSM_SCAN, with_change(SCAN, 6, t(3)), ONE),
    (Op.SSM_SCAN, with_change(SCAN, 6, t(2, type_=I32)), ONE),
    (Op.RWKV_WKV6, with_change(WKV6, 5, t(32, 4)), Params()),
    (Op.RWKV_WKV6, with_change(WKV6, 5, t(0, 0)), Params()),
    (Op.RWKV_WKV6, with_change(WKV6, 3, t(4, 3)), Params()),
    (Op.RWKV_WKV6, with_change(WKV6, 1, t(4, 2, 5)), Params()),
    (Op.RWKV_WKV7, with_change(WKV7, 6, gaps(32, 3)), Params()),
    (Op.RWKV_WKV7, with_change(WKV7, 2, gaps(4, 2, 6)), Params()),
    (Op.GATED_LINEAR_ATTN, with_change(LINEAR, 4, t(33, 3)), Params()),
    (Op.GATED_LINEAR_ATTN, LINEAR, Params.pack("f", math.nan)),
    *[(Op.GATED_DELTA_NET, DELTA, Params.pack("i", k)) for k in (0, -1)],
    (Op.GATED_DELTA_NET, with_change(DELTA, 0, t(4, 0, 6, 3)), ONE),
    (Op.GATED_DELTA_NET, with_change(DELTA, 0, t(4, 1, 6, 2)), ONE),
    (Op.GATED_DELTA_NET, with_change(DELTA, 1, t(5, 2, 6, 3)), ONE),
    (Op.GATED_DELTA_NET, with_change(DELTA, 1, t(4, 2, 5, 3)), ONE),
    (Op.GATED_DELTA_NET, with_change(DELTA, 3, t(2, 2, 6, 3)), ONE),
    (Op.GATED_DELTA_NET, with_change(DELTA, 4, t(4, 2, 6, 3)), ONE),
    (Op.GATED_DELTA_NET, with_change(DELTA, 5, t(4, 4, 2, 2)), ONE),
    (Op.SOLVE_TRI, (t(4, 3), t(2, 3)), Params()),
    (Op.SOLVE_TRI, (t(4, 4, 2), t(2, 4, 3)), Params()),
    (Op.SOLVE_TRI, (gaps(4, 4), t(2, 4)), Params()),
    (Op.LIGHTNING_INDEXER, with_change(INDEXER, 1, t(8, 2, 9, 4)), Params()),
    (Op.LIGHTNING_INDEXER, with_change(INDEXER, 2, t(3, 3, 1, 4)), Params()),
    (Op.LIGHTNING_INDEXER, with_change(INDEXER, 3, t(9, 3, 1, 2)), Params()),
    (Op.LIGHTNING_INDEXER, with_change(INDEXER, 3, t(9, 3, 1, 3, type_=F16)), Params()),
    (Op.LIGHTNING_INDEXER, with_change(INDEXER, 3, t(9, 3, 1, 0, type_=F16)), Params()),
    (Op.DSV4_HC_COMB, with_change(COMB, 0, t(15, 5)), ROUNDS),
    (Op.DSV4_HC_COMB, with_change(COMB, 1, t(2)), ROUNDS),
    (Op.DSV4_HC_COMB, COMB, Params.pack("fi", math.inf, 20)),
    *[(Op.DSV4_HC_COMB, COMB, Params.pack("fi", 0.1, n)) for n in (0, -1, 1025, 2**31 - 1)],
    (Op.DSV4_HC_PRE, (t(8, 4, 5), t(4, 6)), Params.pack("fi", 1, 0)),
    (Op.DSV4_HC_PRE, (t(8, 4, 5), t(4, 5)), Params.pack("fi", 1, 1)),
    (Op.DSV4_HC_PRE, (t(8, 4, 5), t(4, 5)), Params.pack("fi", 1, 2)),
    (Op.DSV4_HC_PRE, (t(8, 0, 5), t(0, 5)), Params.pack("fi", 1, 0)),
    (Op.DSV4_HC_POST, with_change(POST, 1, t(8, 4, 6)), Params()),
    (Op.DSV4_HC_POST, with_change(POST, 2, t(5, 5)), Params()),
    (Op.DSV4_HC_POST, with_change(POST, 3, t(4, 3, 5)), Params()),
]


@pytest.mark.parametrize(("op", "sources", "params"), BAD)
def test_what_does_not_fit_is_refused_by_operation(
    op: Op, sources: tuple[Tensor, ...], params: Params
) -> None:
    with pytest.raises(GraphError, match=f"^{op.name}: .*expected"):
        infer(op, sources, params)


@pytest.mark.parametrize(("op", "sources", "params", "ne"), GOOD)
def test_each_source_is_needed(
    op: Op, sources: tuple[Tensor, ...], params: Params, ne: tuple[int, ...]
) -> None:
    last = 3 if op == Op.DSV4_HC_POST else len(sources)
    for index in range(last):
        some = (*sources[:index], None, *sources[index + 1 :])
        with pytest.raises(GraphError, match=f"{op.name}: source {index} is missing"):
            infer(op, some, params)


def test_huge_dimensions_are_counted_without_being_made() -> None:
    huge = 1 << 40
    x = Tensor(GGMLType.F32, (huge, 2, 6, 1), contiguous_strides(GGMLType.F32, (huge, 2, 6, 1)))
    with pytest.raises(GraphError, match="GATED_LINEAR_ATTN"):
        infer(Op.GATED_LINEAR_ATTN, (x, x, x, x, t(32, 3)), Params())
