"""Shape rules of operations that put elements in other places, fill in new ones or count them: ACC
and SET, padding, rolling, diagonals, ramps and outer products.

Part of `app.ggml.shapes.INFER`; parameters that decide about a shape or an address are checked
here, too. Follows the constructors of ggml.c at llama.cpp b11434.
"""

import math
from typing import Final

import numpy as np

from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.shape_checks import (
    InferFn,
    Inferred,
    Sources,
    can_repeat,
    check,
    check_gapless,
    check_param,
    source,
)
from app.ggml.tensor import Tensor, make_shape
from app.ggml.types import TRAITS, GGMLType

MAX_STEPS: Final = 1 << 31


def _same(op: Op, sources: Sources, params: Params) -> Inferred:
    a = source(op, sources, 0)
    return a.type, a.ne


def _into(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are the whole and the part that goes into it at strides and an offset in bytes."""
    a, b = source(op, sources, 0), source(op, sources, 1)
    check(a.type == b.type and not TRAITS[a.type].is_quantized, op, a, b, want="one plain type")
    check_gapless(op, a)
    if b.n_elements:
        _check_place(op, a, b, params)
    return a.type, a.ne


def _check_place(op: Op, a: Tensor, b: Tensor, params: Params) -> None:
    """The part lies inside the whole, its elements apart and on whole elements of it."""
    size = TRAITS[a.type].type_size
    nb, offset = [size, *(params.i32(i) for i in range(3))], params.i32(3)
    strides = [stride for stride, n in zip(nb, b.ne, strict=True) if n > 1]
    whole = all(stride % size == 0 for stride in (*strides, offset))
    end = 0
    for stride, n in sorted((s, n) for s, n in zip(nb, b.ne, strict=True) if n > 1):
        whole = whole and stride >= end + size
        end += (n - 1) * stride
    inside = offset >= 0 and offset + end + size <= a.nbytes
    want = f"it apart inside of {a.nbytes} bytes, at strides {nb} from byte {offset}"
    check(whole and inside, op, b, want=want)


def _diag(op: Op, sources: Sources, params: Params) -> Inferred:
    a = source(op, sources, 0)
    check(a.ne[1] == 1, op, a, want="one row per plane")
    return a.type, (a.ne[0], a.ne[0], *a.ne[2:])


def _tri(op: Op, sources: Sources, params: Params) -> Inferred:
    a = source(op, sources, 0)
    check(a.ne[0] == a.ne[1], op, a, want="square planes")
    check_gapless(op, a)
    kind = params.i32(0)
    check_param(0 <= kind <= 3, op, "kind", kind, "0 to 3")
    return a.type, a.ne


def _pad(op: Op, sources: Sources, params: Params) -> Inferred:
    """Parameters are how many to add before and after each dimension, and whether in a circle."""
    a = source(op, sources, 0)
    pads = [params.i32(i) for i in range(8)]
    check_param(min(pads) >= 0, op, "the least padding", min(pads), "0 or more")
    circular = params.i32(8)
    check_param(circular in (0, 1), op, "the circular flag", circular, "0 or 1")
    ne = make_shape([a.ne[i] + pads[2 * i] + pads[2 * i + 1] for i in range(4)])
    check(not circular or a.n_elements > 0, op, a, want="elements to repeat")
    return a.type, ne


def _pad_reflect_1d(op: Op, sources: Sources, params: Params) -> Inferred:
    a = source(op, sources, 0)
    check_gapless(op, a)
    pads = params.i32(0), params.i32(1)
    fits = min(pads) >= 0 and max(pads) < a.ne[0]
    check(fits, op, a, want=f"paddings {pads} of 0 or more and less than a row")
    return a.type, (a.ne[0] + sum(pads), *a.ne[1:])


def _roll(op: Op, sources: Sources, params: Params) -> Inferred:
    a = source(op, sources, 0)
    shifts = [params.i32(i) for i in range(4)]
    fits = all(abs(s) < n for s, n in zip(shifts, a.ne, strict=True))
    check(fits, op, a, want=f"shifts {shifts} of less than each dimension")
    return a.type, a.ne


def _arange(op: Op, sources: Sources, params: Params) -> Inferred:
    """Parameters are where to start, where to stop and by how much to go on, in F32."""
    start, stop, step = (np.float32(params.f32(i)) for i in range(3))
    with np.errstate(all="ignore"):
        steps = float((stop - start) / step)
    check_param(bool(stop > start), op, "the stop", float(stop), f"more than the start {start}")
    fits = math.isfinite(steps) and 0 < steps <= MAX_STEPS
    check_param(fits, op, "the number of steps", steps, f"more than 0, up to {MAX_STEPS}")
    return GGMLType.F32, (math.ceil(steps), 1, 1, 1)


def _timestep_embedding(op: Op, sources: Sources, params: Params) -> Inferred:
    a = source(op, sources, 0)
    dim, period = params.i32(0), params.i32(1)
    check_param(dim > 0, op, "dim", dim, "1 or more")
    check_param(period > 0, op, "max_period", period, "1 or more")
    return GGMLType.F32, (dim, a.ne[0], 1, 1)


def _group_norm(op: Op, sources: Sources, params: Params) -> Inferred:
    a = source(op, sources, 0)
    check_param(params.i32(0) > 0, op, "n_groups", params.i32(0), "1 or more")
    eps = params.f32(1)
    check_param(math.isfinite(eps) and eps >= 0, op, "eps", eps, "a finite number of at least 0")
    return a.type, a.ne


def _out_prod(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are columns a [m, k, ...] and b [n, k, ...]; the result is their product [m, n]."""
    a, b = source(op, sources, 0), source(op, sources, 1)
    fits = a.ne[1] == b.ne[1] and can_repeat((1, 1, *a.ne[2:]), (1, 1, *b.ne[2:]))
    check(fits, op, a, b, want="equal ne[1] and repeatable ne[2], ne[3]")
    return GGMLType.F32, (a.ne[0], b.ne[0], *b.ne[2:])


def _count_equal(op: Op, sources: Sources, params: Params) -> Inferred:
    a, b = source(op, sources, 0), source(op, sources, 1)
    check(a.ne == b.ne, op, a, b, want="equal shapes")
    return GGMLType.I64, (1, 1, 1, 1)


INFER: Final[dict[Op, InferFn]] = {
    Op.ACC: _into,
    Op.SET: _into,
    Op.CUMSUM: _same,
    Op.DIAG_MASK_ZERO: _same,
    Op.FILL: _same,
    Op.DIAG: _diag,
    Op.TRI: _tri,
    Op.PAD: _pad,
    Op.PAD_REFLECT_1D: _pad_reflect_1d,
    Op.ROLL: _roll,
    Op.ARANGE: _arange,
    Op.TIMESTEP_EMBEDDING: _timestep_embedding,
    Op.GROUP_NORM: _group_norm,
    Op.OUT_PROD: _out_prod,
    Op.COUNT_EQUAL: _count_equal,
}
