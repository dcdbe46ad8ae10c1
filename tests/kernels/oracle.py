"""What each operation means, in float64 numpy, written from ggml's documentation and CPU sources.

Nothing of app.kernels is used. `want` takes the values of the sources in numpy order
(ne3, ne2, ne1, ne0), as they were before the run, and returns the result.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from app.ggml.op_params import Params, RopeParams
from app.ggml.ops import GluOp, Op, UnaryOp
from app.ggml.tensor import make_shape
from app.ggml.types import GGMLType
from tests.kernels import oracle_arrange, oracle_image, oracle_recurrent
from tests.kernels.harness import Array, Case

Values = list[Array | None]
Oracle = Callable[[Values, Case], Array]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def want(case: Case, values: Values) -> Array:
    """The exact result of a case."""
    with np.errstate(all="ignore"):
        return ORACLES[case.op](values, case)


def _exact(x: npt.ArrayLike) -> Array:
    return np.asarray(x, dtype=np.float64)


def _get(values: Values, index: int) -> Array:
    value = values[index]
    assert value is not None
    return value


def _maybe(values: Values, index: int) -> Array | None:
    return values[index] if index < len(values) else None


def _tiled(small: Array, shape: tuple[int, ...]) -> Array:
    return np.tile(small, [n // m for n, m in zip(shape, small.shape, strict=True)])


def _binary(function: Callable[[Array, Array], Array]) -> Oracle:
    def oracle(values: Values, case: Case) -> Array:
        a = _get(values, 0)
        return function(a, _tiled(_get(values, 1), a.shape))

    return oracle


def _one(function: Callable[[Array, Params], Array]) -> Oracle:
    return lambda values, case: function(_get(values, 0), case.params)


def _softplus(x: Array) -> Array:
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return _exact(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _gelu_erf(x: Array) -> Array:
    return _exact(0.5 * x * (1 + _erf(x / math.sqrt(2))))


def _gelu_quick(x: Array) -> Array:
    return x * _sigmoid(1.702 * x)


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


UNARY: dict[UnaryOp, Callable[[Array], Array]] = {
    UnaryOp.ABS: np.abs,
    UnaryOp.SGN: np.sign,
    UnaryOp.NEG: np.negative,
    UnaryOp.STEP: lambda x: (x > 0).astype(np.float64),
    UnaryOp.TANH: np.tanh,
    UnaryOp.ELU: lambda x: np.where(x > 0, x, np.expm1(x)),
    UnaryOp.RELU: lambda x: np.maximum(x, 0),
    UnaryOp.SIGMOID: _sigmoid,
    UnaryOp.GELU: _gelu,
    UnaryOp.GELU_QUICK: _gelu_quick,
    UnaryOp.SILU: _silu,
    UnaryOp.HARDSWISH: lambda x: x * np.clip((x + 3) / 6, 0, 1),
    UnaryOp.HARDSIGMOID: lambda x: np.clip((x + 3) / 6, 0, 1),
    UnaryOp.EXP: np.exp,
    UnaryOp.EXPM1: np.expm1,
    UnaryOp.SOFTPLUS: _softplus,
    UnaryOp.GELU_ERF: _gelu_erf,
    UnaryOp.FLOOR: np.floor,
    UnaryOp.CEIL: np.ceil,
    UnaryOp.ROUND: lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5),
    UnaryOp.TRUNC: np.trunc,
}


def _xielu(x: Array, params: Params) -> Array:
    negative, positive, beta, eps = (params.f32(i) for i in (1, 2, 3, 4))
    below = (np.expm1(np.minimum(x, eps)) - x) * negative + beta * x
    return np.where(x > 0, positive * x * x + beta * x, below)


def _unary(x: Array, params: Params) -> Array:
    kind = UnaryOp(params.i32(0))
    return _xielu(x, params) if kind == UnaryOp.XIELU else UNARY[kind](x)


def _glu(values: Values, case: Case) -> Array:
    kind, swapped = GluOp(case.params.i32(0)), case.params.i32(1)
    gate, up = _get(values, 0), _maybe(values, 1)
    if up is None:
        half = gate.shape[-1] // 2
        gate, up = gate[..., :half], gate[..., half : 2 * half]
        gate, up = (up, gate) if swapped else (gate, up)
    alpha, limit = case.params.f32(2), case.params.f32(3)
    if kind == GluOp.SWIGLU_OAI:
        x = np.minimum(gate, limit)
        return x * _sigmoid(alpha * x) * (np.clip(up, -limit, limit) + 1)
    if kind == GluOp.SWIGLU_CLAMP:
        return _silu(np.minimum(gate, limit)) * np.clip(up, -limit, limit)
    functions: dict[GluOp, Callable[[Array], Array]] = {
        GluOp.REGLU: lambda x: np.maximum(x, 0),
        GluOp.GEGLU: _gelu,
        GluOp.SWIGLU: _silu,
        GluOp.GEGLU_ERF: _gelu_erf,
        GluOp.GEGLU_QUICK: _gelu_quick,
    }
    return functions[kind](gate) * up


def _norm(x: Array, params: Params) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return _exact(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + params.f32(0)))


def _rms_norm(x: Array, params: Params) -> Array:
    return _exact(x / np.sqrt((x**2).mean(-1, keepdims=True) + params.f32(0)))


def _l2_norm(x: Array, params: Params) -> Array:
    return _exact(x / np.maximum(np.sqrt((x**2).sum(-1, keepdims=True)), params.f32(0)))


def _mul_mat(values: Values, case: Case) -> Array:
    a, b = _get(values, 0), _get(values, 1)
    a = np.repeat(a, b.shape[1] // a.shape[1], axis=1)
    a = np.repeat(a, b.shape[0] // a.shape[0], axis=0)
    return _exact(np.einsum("abmk,abnk->abmn", b, a))


def _mul_mat_id(values: Values, case: Case) -> Array:
    experts, rows, ids = (_get(values, i)[0] for i in range(3))
    chosen = ids[0].astype(int)
    n_tokens, n_used = chosen.shape
    result = np.zeros((1, n_tokens, n_used, experts.shape[1]))
    for t in range(n_tokens):
        for s in range(n_used):
            result[0, t, s] = experts[chosen[t, s]] @ rows[t, s % rows.shape[1]]
    return result


def _add_id(values: Values, case: Case) -> Array:
    return _exact(_get(values, 0) + _get(values, 1)[0, 0][_get(values, 2)[0, 0].astype(int)])


def _get_rows(values: Values, case: Case) -> Array:
    source, index = _get(values, 0), _get(values, 1)[0].astype(int)
    planes = [
        [source[i3, i2][index[i3, i2]] for i2 in range(source.shape[1])]
        for i3 in range(source.shape[0])
    ]
    return np.array(planes)


def _set_rows(values: Values, case: Case) -> Array:
    rows, index, result = _get(values, 0), _get(values, 1)[0].astype(int), _get(values, 2).copy()
    for i3 in range(rows.shape[0]):
        for i2 in range(rows.shape[1]):
            at = index[i3 % index.shape[0], i2 % index.shape[1]]
            for row, to in zip(rows[i3, i2], at, strict=True):
                result[i3, i2, to] = row
    return result


def _yarn(rope: RopeParams, pair: int, angle: float) -> tuple[float, float]:
    """Angle and magnitude of one pair after YaRN."""
    if rope.ext_factor == 0:
        return angle * rope.freq_scale, rope.attn_factor

    def dim(rotations: float) -> float:
        wavelengths = math.log(rope.n_ctx_orig / (rotations * 2 * math.pi))
        return rope.n_dims * wavelengths / (2 * math.log(rope.freq_base))

    if rope.n_ctx_orig == 0:
        mix = rope.ext_factor if pair == 0 else 0.0
        mixed = angle * rope.freq_scale * (1 - mix) + angle * mix
        return mixed, rope.attn_factor * (1 + 0.1 * math.log(1 / rope.freq_scale))
    start = max(0.0, math.floor(dim(rope.beta_fast)))
    end = min(rope.n_dims - 1.0, math.ceil(dim(rope.beta_slow)))
    ramp = 1 - min(1.0, max(0.0, (pair - start) / max(0.001, end - start)))
    mix = ramp * rope.ext_factor
    mixed = angle * rope.freq_scale * (1 - mix) + angle * mix
    return mixed, rope.attn_factor * (1 + 0.1 * math.log(1 / rope.freq_scale))


def _rope_stream(rope: RopeParams, pair: int) -> tuple[int, int]:
    """Which position turns a pair, and the number of its frequency."""
    if not rope.mode & 8:
        return 0, pair
    sections, total = rope.sections, sum(rope.sections)
    sector = pair % total
    if rope.mode == 40:
        stream = sector % 3
        return (stream if sector < 3 * sections[stream] else 3), pair
    stream = next(i for i in range(4) if sector < sum(sections[: i + 1]))
    return stream, (sector - sum(sections[:stream]) if rope.mode == 24 else pair)


def _rope(values: Values, case: Case) -> Array:
    rope = RopeParams.unpack(case.params)
    x, factors = _get(values, 0), _maybe(values, 2)
    positions = _get(values, 1).reshape(-1, x.shape[1])
    back = -1 if case.op == Op.ROPE_BACK else 1
    result = x.copy()
    half = rope.n_dims if rope.mode == 24 else rope.n_dims // 2
    for pair in range(half):
        stream, number = _rope_stream(rope, pair)
        frequency = rope.freq_base ** (-2 * number / rope.n_dims)
        factor = 1.0 if factors is None else factors[0, 0, 0, pair]
        first = rope.n_offs + (2 * pair if rope.mode == 0 else pair)
        second = first + (1 if rope.mode == 0 else half)
        for token, position in enumerate(positions[stream]):
            angle, size = _yarn(rope, pair, position * frequency / factor)
            cos, sin = math.cos(angle) * size, math.sin(angle) * size * back
            a, b = x[:, token, :, first], x[:, token, :, second]
            result[:, token, :, first] = a * cos - b * sin
            result[:, token, :, second] = a * sin + b * cos
    return result


def _slopes(n_head: int, max_bias: float) -> list[float]:
    if max_bias == 0:
        return [1.0] * n_head
    power = 2 ** math.floor(math.log2(n_head))
    m0, m1 = 2 ** (-max_bias / power), 2 ** (-max_bias / 2 / power)
    return [m0 ** (h + 1) if h < power else m1 ** (2 * (h - power) + 1) for h in range(n_head)]


def _masked_softmax(
    logits: Array, mask: Array | None, sinks: Array | None, max_bias: float
) -> Array:
    """Softmax of (s, h, n, n_kv); a row without any key gives zeros."""
    n_seq, n_head, n_rows, _ = logits.shape
    result = np.zeros_like(logits)
    slopes = _slopes(n_head, max_bias)
    for s in range(n_seq):
        for h in range(n_head):
            row = logits[s, h]
            if mask is not None:
                row = row + slopes[h] * mask[s % mask.shape[0], h % mask.shape[1], :n_rows]
            top = row.max(-1, keepdims=True)
            if sinks is not None:
                top = np.maximum(top, sinks.ravel()[h])
            exp = np.where(np.isneginf(top), 0.0, np.exp(row - top))
            total = exp.sum(-1, keepdims=True)
            if sinks is not None:
                total = total + np.exp(sinks.ravel()[h] - top)
            result[s, h] = np.divide(exp, total, out=np.zeros_like(exp), where=total > 0)
    return result


def _soft_max(values: Values, case: Case) -> Array:
    scaled = _get(values, 0) * case.params.f32(0)
    mask, sinks = _maybe(values, 1), _maybe(values, 2)
    return _masked_softmax(scaled, mask, sinks, case.params.f32(1))


def _flash_attn(values: Values, case: Case) -> Array:
    q, k, v = (_get(values, i) for i in range(3))
    scale, max_bias, cap = (case.params.f32(i) for i in range(3))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    logits = np.einsum("shnd,shkd->shnk", q, k) * scale
    if cap:
        logits = cap * np.tanh(logits / cap)
    weights = _masked_softmax(logits, _maybe(values, 3), _maybe(values, 4), max_bias)
    return _exact(np.einsum("shnk,shkd->snhd", weights, v))


def _copy(values: Values, case: Case) -> Array:
    source = _get(values, 0)
    if case.op == Op.CPY:
        target = case.sources[1]
        assert target is not None
        moved = source.reshape(_get(values, 1).shape)
        return np.trunc(moved) if target.type == GGMLType.I32 else moved
    shape = source.shape if case.ne is None else make_shape(case.ne)[::-1]
    return source.reshape(shape)


def _repeat(values: Values, case: Case) -> Array:
    assert case.ne is not None
    return _tiled(_get(values, 0), make_shape(case.ne)[::-1])


def _concat(values: Values, case: Case) -> Array:
    return np.concatenate([_get(values, 0), _get(values, 1)], axis=3 - case.params.i32(0))


def _argmax(values: Values, case: Case) -> Array:
    x = _get(values, 0)[0, 0]
    last = x.shape[-1] - 1 - np.argmax(x[..., ::-1], axis=-1)
    return _exact(last).reshape(1, 1, 1, -1)


def _argsort(values: Values, case: Case) -> Array:
    sign = -1 if case.params.i32(0) else 1
    return np.argsort(sign * _get(values, 0), axis=-1, kind="stable").astype(np.float64)


def _diag_mask_inf(values: Values, case: Case) -> Array:
    x = _get(values, 0)
    row, column = np.indices(x.shape[-2:])
    return np.where(column > row + case.params.i32(0), -np.inf, x)


ORACLES: dict[Op, Oracle] = {
    **oracle_arrange.ORACLES,
    **oracle_image.ORACLES,
    **oracle_recurrent.ORACLES,
    Op.ADD: _binary(np.add),
    Op.ADD1: _binary(np.add),
    Op.SUB: _binary(np.subtract),
    Op.MUL: _binary(np.multiply),
    Op.DIV: _binary(np.divide),
    Op.SCALE: _one(lambda x, p: x * p.f32(0) + p.f32(1)),
    Op.CLAMP: _one(lambda x, p: np.clip(x, p.f32(0), p.f32(1))),
    Op.LEAKY_RELU: _one(lambda x, p: np.where(x > 0, x, x * p.f32(0))),
    Op.SQR: _one(lambda x, p: x * x),
    Op.SQRT: _one(lambda x, p: np.sqrt(x)),
    Op.LOG: _one(lambda x, p: np.log(x)),
    Op.SIN: _one(lambda x, p: np.sin(x)),
    Op.COS: _one(lambda x, p: np.cos(x)),
    Op.UNARY: _one(_unary),
    Op.GLU: _glu,
    Op.NORM: _one(_norm),
    Op.RMS_NORM: _one(_rms_norm),
    Op.L2_NORM: _one(_l2_norm),
    Op.SUM: _one(lambda x, p: x.sum().reshape(1, 1, 1, 1)),
    Op.SUM_ROWS: _one(lambda x, p: x.sum(-1, keepdims=True)),
    Op.MEAN: _one(lambda x, p: x.mean(-1, keepdims=True)),
    Op.ARGMAX: _argmax,
    Op.ARGSORT: _argsort,
    Op.DIAG_MASK_INF: _diag_mask_inf,
    Op.MUL_MAT: _mul_mat,
    Op.MUL_MAT_ID: _mul_mat_id,
    Op.ADD_ID: _add_id,
    Op.GET_ROWS: _get_rows,
    Op.SET_ROWS: _set_rows,
    Op.ROPE: _rope,
    Op.ROPE_BACK: _rope,
    Op.SOFT_MAX: _soft_max,
    Op.FLASH_ATTN_EXT: _flash_attn,
    Op.DUP: _copy,
    Op.CONT: _copy,
    Op.CPY: _copy,
    Op.REPEAT: _repeat,
    Op.CONCAT: _concat,
}
