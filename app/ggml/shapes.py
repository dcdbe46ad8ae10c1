"""Type and shape of each operation's result, from its sources and parameters.

One table, `INFER`, serves the builder (which asks what a new node looks like) and the verifier
(which checks what a peer says a node looks like). The rules follow the constructors of ggml.c at
llama.cpp b11434. Views, CONT, CPY and REPEAT are not here: their caller chooses the shape, which
`app.ggml.verify` holds against the source. Dimensions may be zero, as in a step without outputs.
"""

from app.errors import GraphError
from app.ggml import shapes_arrange, shapes_image, shapes_recurrent
from app.ggml.op_params import Params, RopeParams
from app.ggml.ops import Op, RopeMode
from app.ggml.shape_checks import InferFn, Inferred, Sources, can_repeat
from app.ggml.shape_checks import check as _check
from app.ggml.shape_checks import source as _source
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType


def infer(op: Op, sources: Sources, params: Params) -> Inferred:
    """Return the type and shape [ne] that `op` makes of `sources`.

    Raises: GraphError naming the operation and the shapes that do not fit.
    """
    rule = INFER.get(op)
    if rule is None:
        raise GraphError(
            f"{op.name}: no shape rule, expected one of {', '.join(o.name for o in INFER)}"
        )
    return rule(op, sources, params)


def _same(op: Op, sources: Sources, params: Params) -> Inferred:
    a = _source(op, sources, 0)
    return a.type, a.ne


def _binary(op: Op, sources: Sources, params: Params) -> Inferred:
    a, b = _source(op, sources, 0), _source(op, sources, 1)
    _check(can_repeat(b.ne, a.ne), op, a, b, want="the second to repeat into the first")
    return a.type, a.ne


def _mul_mat(op: Op, sources: Sources, params: Params) -> Inferred:
    a, b = _source(op, sources, 0), _source(op, sources, 1)
    fits = a.ne[0] == b.ne[0] and can_repeat((1, 1, a.ne[2], a.ne[3]), (1, 1, b.ne[2], b.ne[3]))
    _check(fits, op, a, b, want="equal ne[0] and repeatable ne[2], ne[3]")
    return GGMLType.F32, (a.ne[1], b.ne[1], b.ne[2], b.ne[3])


def _get_rows(op: Op, sources: Sources, params: Params) -> Inferred:
    a, b = _source(op, sources, 0), _source(op, sources, 1)
    fits = a.ne[2] == b.ne[1] and a.ne[3] == b.ne[2] and b.ne[3] == 1
    _check(fits and b.type == GGMLType.I32, op, a, b, want="I32 indices [n, ne2, ne3]")
    result = GGMLType.I32 if a.type == GGMLType.I32 else GGMLType.F32
    return result, (a.ne[0], b.ne[0], b.ne[1], b.ne[2])


def _set_rows(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are the new rows, their indices, and the tensor that is written."""
    b, c, a = (_source(op, sources, i) for i in range(3))
    fits = (
        a.ne[0] == b.ne[0]
        and a.ne[2:] == b.ne[2:]
        and b.ne[1] == c.ne[0]
        and can_repeat((1, 1, c.ne[1], c.ne[2]), (1, 1, b.ne[2], b.ne[3]))
        and c.ne[3] == 1
    )
    _check(fits, op, b, c, a, want="rows [n, m], indices [m], destination [n, any]")
    types = b.type in (GGMLType.F32, GGMLType.F16) and c.type in (GGMLType.I64, GGMLType.I32)
    _check(types, op, b, c, a, want="F32 or F16 rows and I64 or I32 indices")
    return a.type, a.ne


def _rope(op: Op, sources: Sources, params: Params) -> Inferred:
    a, b = _source(op, sources, 0), _source(op, sources, 1)
    rope = RopeParams.unpack(params)
    per_token = 4 if rope.mode & RopeMode.MROPE else 1
    fits = b.type == GGMLType.I32 and b.ne == (per_token * a.ne[2], 1, 1, 1)
    _check(fits, op, a, b, want=f"{per_token} I32 positions for each of ne2")
    in_row = rope.n_dims > 0 and rope.n_offs >= 0 and rope.n_offs + rope.n_dims <= a.ne[0]
    even = rope.n_dims % 2 == 0 and rope.n_offs % 2 == 0
    _check(in_row and even, op, a, want=f"even n_dims {rope.n_dims} within the row")
    n_pairs = rope.n_dims // 2
    if rope.mode == RopeMode.VISION:
        n_pairs = rope.n_dims
        fits = a.ne[0] == 2 * n_pairs and rope.n_offs == 0
        _check(fits, op, a, want=f"n_dims {rope.n_dims} of half a row")
    if rope.mode & RopeMode.MROPE:
        total = sum(rope.sections)
        _check(total <= a.ne[0], op, a, want=f"sections of {total} within the row")
    factors = sources[2] if len(sources) > 2 else None
    if factors is not None:
        long_enough = factors.ne[0] >= n_pairs and 0 not in factors.ne
        fits = factors.type == GGMLType.F32 and long_enough
        _check(fits, op, a, factors, want=f"F32 frequency factors [{n_pairs}]")
    return a.type, a.ne


def _soft_max(op: Op, sources: Sources, params: Params) -> Inferred:
    a = _source(op, sources, 0)
    mask = sources[1] if len(sources) > 1 else None
    if mask is not None:
        fits = (
            mask.type in (GGMLType.F16, GGMLType.F32)
            and mask.ne[0] == a.ne[0]
            and mask.ne[1] >= a.ne[1]
            and can_repeat((1, 1, mask.ne[2], mask.ne[3]), (1, 1, a.ne[2], a.ne[3]))
        )
        _check(fits, op, a, mask, want="a mask [ne0, >= ne1, ...]")
    _check_sinks(op, a, sources[2] if len(sources) > 2 else None)
    return a.type, a.ne


def _check_sinks(op: Op, a: Tensor, sinks: Tensor | None) -> None:
    """One F32 logit per head, heads being dimension 2 of `a`."""
    if sinks is not None:
        fits = sinks.type == GGMLType.F32 and sinks.ne == (a.ne[2], 1, 1, 1)
        _check(fits, op, a, sinks, want="F32 sinks [n_head]")


def _flash_attn(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are Q [d, n, h, s], K [d, n_kv, h_kv, s], V [dv, n_kv, h_kv, s], mask [n_kv, >= n,
    ...].
    """
    q, k, v = (_source(op, sources, i) for i in range(3))
    fits = (
        q.ne[0] == k.ne[0]
        and k.ne[1:] == v.ne[1:]
        and q.ne[3] == k.ne[3]
        and k.ne[2] > 0
        and q.ne[2] % k.ne[2] == 0
    )
    _check(
        fits and q.type == GGMLType.F32,
        op,
        q,
        k,
        v,
        want="F32 Q, K and V of one length and head ratio",
    )
    mask = sources[3] if len(sources) > 3 else None
    if mask is not None:
        fits = mask.ne[0] == k.ne[1] and mask.ne[1] >= q.ne[1]
        fits = fits and can_repeat((1, 1, mask.ne[2], mask.ne[3]), (1, 1, q.ne[2], q.ne[3]))
        _check(
            fits and mask.type == GGMLType.F16,
            op,
            q,
            k,
            mask,
            want="an F16 mask [n_kv, >= n_tokens]",
        )
    _check_sinks(op, q, sources[4] if len(sources) > 4 else None)
    return GGMLType.F32, (v.ne[0], q.ne[2], q.ne[1], q.ne[3])


def _glu(op: Op, sources: Sources, params: Params) -> Inferred:
    a = _source(op, sources, 0)
    b = sources[1] if len(sources) > 1 else None
    if b is not None:
        _check(a.ne == b.ne and a.type == b.type, op, a, b, want="equal shapes")
        return a.type, a.ne
    return a.type, (a.ne[0] // 2, *a.ne[1:])


def _sum_rows(op: Op, sources: Sources, params: Params) -> Inferred:
    a = _source(op, sources, 0)
    return a.type, (1, *a.ne[1:])


def _mean(op: Op, sources: Sources, params: Params) -> Inferred:
    a = _source(op, sources, 0)
    return GGMLType.F32, (1, *a.ne[1:])


def _concat(op: Op, sources: Sources, params: Params) -> Inferred:
    a, b = _source(op, sources, 0), _source(op, sources, 1)
    dim = params.i32(0)
    _check(0 <= dim < 4 and a.type == b.type, op, a, b, want=f"equal types, dimension {dim} of 4")
    ne = list(b.ne)
    ne[dim] = a.ne[dim]
    _check(tuple(ne) == a.ne, op, a, b, want=f"equal shapes but for dimension {dim}")
    ne[dim] = a.ne[dim] + b.ne[dim]
    return a.type, (ne[0], ne[1], ne[2], ne[3])


def _add1(op: Op, sources: Sources, params: Params) -> Inferred:
    a, b = _source(op, sources, 0), _source(op, sources, 1)
    _check(b.n_elements == 1, op, a, b, want="a second source of one element")
    return a.type, a.ne


def _sum(op: Op, sources: Sources, params: Params) -> Inferred:
    return _source(op, sources, 0).type, (1, 1, 1, 1)


def _argmax(op: Op, sources: Sources, params: Params) -> Inferred:
    a = _source(op, sources, 0)
    _check(a.ne[0] > 0 and a.ne[2:] == (1, 1), op, a, want="a matrix with columns")
    return GGMLType.I32, (a.ne[1], 1, 1, 1)


def _argsort(op: Op, sources: Sources, params: Params) -> Inferred:
    return GGMLType.I32, _source(op, sources, 0).ne


def _mul_mat_id(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are the experts [k, n, n_expert], rows [k, b1, t] and their experts [n_used, t]."""
    a, b, ids = (_source(op, sources, i) for i in range(3))
    fits = (
        a.ne[0] == b.ne[0]
        and a.ne[3] == b.ne[3] == 1
        and ids.ne[1:] == (b.ne[2], 1, 1)
        and b.ne[1] > 0
        and ids.ne[0] % b.ne[1] == 0
    )
    _check(fits and ids.type == GGMLType.I32, op, a, b, ids, want="I32 experts for each row")
    return GGMLType.F32, (a.ne[1], ids.ne[0], b.ne[2], 1)


def _add_id(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are a [n, n_used, t], a bias per expert [n, n_expert] and the experts [n_used, t]."""
    a, b, ids = (_source(op, sources, i) for i in range(3))
    fits = a.ne[0] == b.ne[0] and a.ne[1:3] == ids.ne[:2] and b.ne[2:] == ids.ne[2:] == (1, 1)
    _check(fits and ids.type == GGMLType.I32, op, a, b, ids, want="I32 experts for each row")
    return a.type, a.ne


INFER: dict[Op, InferFn] = {
    Op.ADD: _binary,
    Op.ADD1: _add1,
    Op.ADD_ID: _add_id,
    Op.SUB: _binary,
    Op.MUL: _binary,
    Op.DIV: _binary,
    Op.SQR: _same,
    Op.SQRT: _same,
    Op.LOG: _same,
    Op.SIN: _same,
    Op.COS: _same,
    Op.SUM: _sum,
    Op.SUM_ROWS: _sum_rows,
    Op.MEAN: _mean,
    Op.ARGMAX: _argmax,
    Op.ARGSORT: _argsort,
    Op.CONCAT: _concat,
    Op.DIAG_MASK_INF: _same,
    Op.DUP: _same,
    Op.LEAKY_RELU: _same,
    Op.NORM: _same,
    Op.RMS_NORM: _same,
    Op.L2_NORM: _same,
    Op.SCALE: _same,
    Op.CLAMP: _same,
    Op.UNARY: _same,
    Op.MUL_MAT: _mul_mat,
    Op.MUL_MAT_ID: _mul_mat_id,
    Op.GET_ROWS: _get_rows,
    Op.SET_ROWS: _set_rows,
    Op.ROPE: _rope,
    Op.ROPE_BACK: _rope,
    Op.SOFT_MAX: _soft_max,
    Op.FLASH_ATTN_EXT: _flash_attn,
    Op.GLU: _glu,
    **shapes_arrange.INFER,
    **shapes_image.INFER,
    **shapes_recurrent.INFER,
}
