"""What the operations that move, make or count elements mean, in float64 numpy; part of
`tests.kernels.oracle`.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from app.ggml.ops import Op
from tests.kernels.harness import Array, Case

Values = list[Array | None]
Oracle = Callable[[Values, Case], Array]


def _get(values: Values, index: int) -> Array:
    value = values[index]
    assert value is not None
    return value


def _exact(x: npt.ArrayLike) -> Array:
    return np.asarray(x, dtype=np.float64)


def _into(values: Values, case: Case) -> Array:
    """Address by address: byte strides and a byte offset of four-byte elements."""
    whole, part = _get(values, 0).copy().ravel(), _get(values, 1)
    nb = [4, *(case.params.i32(i) for i in range(3))]
    for index in np.ndindex(part.shape):
        at = (case.params.i32(3) + sum(i * s for i, s in zip(index[::-1], nb, strict=True))) // 4
        whole[at] = part[index] + (whole[at] if case.op == Op.ACC else 0.0)
    return whole.reshape(_get(values, 0).shape)


def _pad(values: Values, case: Case) -> Array:
    pads = [case.params.i32(i) for i in range(8)]
    widths = [(pads[2 * i], pads[2 * i + 1]) for i in (3, 2, 1, 0)]
    return np.pad(_get(values, 0), widths, mode="wrap" if case.params.i32(8) else "constant")


def _pad_reflect_1d(values: Values, case: Case) -> Array:
    widths = [(0, 0)] * 3 + [(case.params.i32(0), case.params.i32(1))]
    return np.pad(_get(values, 0), widths, mode="reflect")


def _roll(values: Values, case: Case) -> Array:
    shifts = tuple(case.params.i32(i) for i in (3, 2, 1, 0))
    return np.roll(_get(values, 0), shifts, (0, 1, 2, 3))


def _diag(values: Values, case: Case) -> Array:
    row = _get(values, 0)
    return _exact(row * np.eye(row.shape[-1]))


def _tri(values: Values, case: Case) -> Array:
    x, kind = _get(values, 0), case.params.i32(0)
    row, column = np.indices(x.shape[-2:])
    kept = [column >= row, column > row, column <= row, column < row][kind]
    return np.where(kept, x, 0.0)


def _arange(values: Values, case: Case) -> Array:
    start, stop, step = (case.params.f32(i) for i in range(3))
    return _exact(np.arange(start, stop, step)).reshape(1, 1, 1, -1)


def _timestep_embedding(values: Values, case: Case) -> Array:
    dim, period = case.params.i32(0), case.params.i32(1)
    times, half = _get(values, 0)[0, 0, 0], dim // 2
    angles = np.outer(times, np.exp(-math.log(period) * np.arange(half) / half))
    result = np.zeros((1, 1, times.size, dim))
    result[..., :half], result[..., half : 2 * half] = np.cos(angles), np.sin(angles)
    return result


def _diag_mask_zero(values: Values, case: Case) -> Array:
    x = _get(values, 0)
    row, column = np.indices(x.shape[-2:])
    return np.where(column > row + case.params.i32(0), 0.0, x)


def _group_norm(values: Values, case: Case) -> Array:
    x, groups, eps = _get(values, 0), case.params.i32(0), case.params.f32(1)
    size, result = math.ceil(x.shape[1] / groups), np.zeros(x.shape)
    for plane in range(x.shape[0]):
        for start in range(0, x.shape[1], size):
            part = x[plane, start : start + size]
            result[plane, start : start + size] = (part - part.mean()) / np.sqrt(part.var() + eps)
    return result


def _out_prod(values: Values, case: Case) -> Array:
    a, b = _get(values, 0), _get(values, 1)
    a = np.repeat(np.repeat(a, b.shape[1] // a.shape[1], 1), b.shape[0] // a.shape[0], 0)
    return _exact(np.einsum("stkm,stkn->stnm", a, b))


def _repeat_back(values: Values, case: Case) -> Array:
    x, ne = _get(values, 0), case.ne
    assert ne is not None
    shape = (*(1,) * (4 - len(ne)), *ne[::-1])
    result = np.zeros(shape)
    for index in np.ndindex(x.shape):
        result[tuple(i % n for i, n in zip(index, shape, strict=True))] += x[index]
    return result


def _count_equal(values: Values, case: Case) -> Array:
    return _exact(np.sum(_get(values, 0) == _get(values, 1))).reshape(1, 1, 1, 1)


ORACLES: dict[Op, Oracle] = {
    Op.ACC: _into,
    Op.SET: _into,
    Op.PAD: _pad,
    Op.PAD_REFLECT_1D: _pad_reflect_1d,
    Op.ROLL: _roll,
    Op.DIAG: _diag,
    Op.TRI: _tri,
    Op.FILL: lambda values, case: np.full(_get(values, 0).shape, case.params.f32(0)),
    Op.ARANGE: _arange,
    Op.TIMESTEP_EMBEDDING: _timestep_embedding,
    Op.DIAG_MASK_ZERO: _diag_mask_zero,
    Op.GROUP_NORM: _group_norm,
    Op.OUT_PROD: _out_prod,
    Op.REPEAT_BACK: _repeat_back,
    Op.COUNT_EQUAL: _count_equal,
    Op.CUMSUM: lambda values, case: np.cumsum(_get(values, 0), -1),
}
