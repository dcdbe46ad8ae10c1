"""What the recurrent operations, the triangular solver and DeepSeek's operations mean, in float64
numpy: one loop over sequences, tokens and heads, written from ggml's CPU sources.
"""

import numpy as np

from app.ggml.ops import Op
from tests.kernels.harness import Array, Case

Values = list[Array | None]


def _get(values: Values, index: int) -> Array:
    value = values[index]
    assert value is not None
    return value


def _flat(out: Array, states: Array, shape: tuple[int, ...]) -> Array:
    return np.concatenate([out.ravel(), states.ravel()]).reshape(shape)


def _ssm_conv(values: Values, case: Case) -> Array:
    x, kernel = _get(values, 0)[0], _get(values, 1)[0, 0]
    n_seqs, n_inner, length = x.shape
    width = kernel.shape[1]
    result = np.zeros((1, n_seqs, length - width + 1, n_inner))
    for s in range(n_seqs):
        for t in range(length - width + 1):
            for c in range(n_inner):
                result[0, s, t, c] = x[s, c, t : t + width] @ kernel[c]
    return result


def _ssm_scan(values: Values, case: Case) -> Array:
    states, x, dt, a, b, c, ids = (_get(values, i) for i in range(7))
    n_seqs, n_tokens, n_head, _ = x.shape
    n_slots = case.params.i32(0)
    out, kept = np.zeros_like(x), np.zeros((n_slots, n_seqs, *states.shape[1:]))
    for s in range(n_seqs):
        state = states[int(ids[0, 0, 0, s])].copy()
        for t in range(n_tokens):
            for h in range(n_head):
                group = h // (n_head // b.shape[2])
                width = np.log1p(np.exp(dt[0, s, t, h]))
                decay = np.exp(width * a[0, 0, h])
                state[h] = state[h] * decay + np.outer(x[s, t, h] * width, b[s, t, group])
                out[s, t, h] = state[h] @ c[s, t, group]
            if n_tokens - 1 - t < n_slots:
                kept[n_tokens - 1 - t, s] = state
    return _flat(out, kept, (1, 1, 1, -1))


def _tokens(values: Values, index: int, n_seqs: int) -> Array:
    """Values [d, h, t] as (s, t, h, d)."""
    value = _get(values, index)[0]
    tokens: Array = value.reshape(n_seqs, -1, *value.shape[1:])
    return tokens


def _wkv6(values: Values, case: Case) -> Array:
    n_seqs = _get(values, 5).shape[2]
    k, v, r, decay = (_tokens(values, i, n_seqs) for i in (0, 1, 2, 4))
    _, n_tokens, n_head, dim = k.shape
    bonus = _get(values, 3).reshape(n_head, dim, 1)
    states, out = _get(values, 5).reshape(n_seqs, n_head, dim, dim).copy(), np.zeros_like(k)
    for s, t, h in np.ndindex(n_seqs, n_tokens, n_head):
        new = np.outer(k[s, t, h], v[s, t, h])
        out[s, t, h] = r[s, t, h] @ (states[s, h] + bonus[h] * new)
        states[s, h] = states[s, h] * decay[s, t, h][:, None] + new
    return _flat(out, states, (1, 1, -1, n_head * dim))


def _wkv7(values: Values, case: Case) -> Array:
    n_seqs = _get(values, 6).shape[2]
    r, decay, k, v, a, b = (_tokens(values, i, n_seqs) for i in range(6))
    _, n_tokens, n_head, dim = k.shape
    states, out = _get(values, 6).reshape(n_seqs, n_head, dim, dim).copy(), np.zeros_like(k)
    for s, t, h in np.ndindex(n_seqs, n_tokens, n_head):
        state = states[s, h]
        states[s, h] = (
            state * decay[s, t, h]
            + np.outer(v[s, t, h], k[s, t, h])
            + np.outer(state @ a[s, t, h], b[s, t, h])
        )
        out[s, t, h] = states[s, h] @ r[s, t, h]
    return _flat(out, states, (1, 1, -1, n_head * dim))


def _gated_linear_attn(values: Values, case: Case) -> Array:
    n_seqs = _get(values, 4).shape[2]
    k, v, q, gate = (_tokens(values, i, n_seqs) for i in range(4))
    _, n_tokens, n_head, dim = k.shape
    states, out = _get(values, 4).reshape(n_seqs, n_head, dim, dim).copy(), np.zeros_like(k)
    for s, t, h in np.ndindex(n_seqs, n_tokens, n_head):
        new = np.outer(k[s, t, h], v[s, t, h])
        states[s, h] = states[s, h] * gate[s, t, h][:, None] + new
        out[s, t, h] = case.params.f32(0) * (q[s, t, h] @ states[s, h])
    return _flat(out, states, (1, 1, -1, n_head * dim))


def _gated_delta_net(values: Values, case: Case) -> Array:
    q, k, v, gate, beta, before = (_get(values, i) for i in range(6))
    n_seqs, n_tokens, n_head, dim = v.shape
    n_slots = case.params.i32(0)
    out, kept = np.zeros_like(v), np.zeros((n_slots, *before.shape))
    for s, h in np.ndindex(n_seqs, n_head):
        state = before[s, h].copy()
        queries = q[s * q.shape[0] // n_seqs, :, h % q.shape[2]]
        keys = k[s * k.shape[0] // n_seqs, :, h % k.shape[2]]
        for t in range(n_tokens):
            state = state * np.exp(gate[s, t, h])
            change = (v[s, t, h] - state @ keys[t]) * beta[s, t, h]
            state = state + np.outer(change, keys[t])
            out[s, t, h] = state @ queries[t] / np.sqrt(dim)
            if n_tokens - 1 - t < n_slots:
                kept[n_tokens - 1 - t, s, h] = state
    return _flat(out, kept, (1, 1, -1, n_head * dim))


def _solve_tri(values: Values, case: Case) -> Array:
    return np.asarray(np.linalg.solve(np.tril(_get(values, 0)), _get(values, 1)), np.float64)


def _lightning_indexer(values: Values, case: Case) -> Array:
    q, k, weights, mask = (_get(values, i) for i in range(4))
    n_seqs, n_tokens = q.shape[:2]
    result = np.zeros((n_seqs, 1, n_tokens, k.shape[1]))
    for s, t in np.ndindex(n_seqs, n_tokens):
        for key in range(k.shape[1]):
            scores = np.maximum(q[s, t] @ k[s, key, 0], 0) * weights[s, 0, t]
            result[s, 0, t, key] = scores.sum() + mask[s % mask.shape[0], 0, t, key]
    return result


def _hyper_comb(values: Values, case: Case) -> Array:
    mixes, scale, base = (_get(values, i)[0, 0] for i in range(3))
    eps, rounds = case.params.f32(0), case.params.i32(1)
    result = np.zeros((1, mixes.shape[0], 4, 4))
    for t, mix in enumerate(mixes):
        logits = (mix[8:] * scale[0, 2] + base[0, 8:]).reshape(4, 4)
        matrix = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) + eps
        for turn in range(2 * rounds - 1):
            matrix = matrix / (matrix.sum(turn % 2, keepdims=True) + eps)
        result[0, t] = matrix
    return result


def _hyper_pre(values: Values, case: Case) -> Array:
    x, weights = _get(values, 0)[0], _get(values, 1)
    factors = 1 / (1 + np.exp(-weights[0])) if case.params.i32(1) else weights[0, 0][..., None]
    mixed: Array = case.params.f32(0) * (x * factors).sum(1)
    return mixed[None, None]


def _hyper_post(values: Values, case: Case) -> Array:
    x, residual, post = _get(values, 0)[0, 0], _get(values, 1)[0], _get(values, 2)[0, 0]
    comb = values[3] if len(values) > 3 else None
    result = np.zeros((1, *residual.shape))
    for t, to in np.ndindex(*post.shape):
        mixed = residual[t, to] if comb is None else comb[0, t][:, to] @ residual[t]
        result[0, t, to] = x[t] * post[t, to] + mixed
    return result


ORACLES = {
    Op.SSM_CONV: _ssm_conv,
    Op.SSM_SCAN: _ssm_scan,
    Op.RWKV_WKV6: _wkv6,
    Op.RWKV_WKV7: _wkv7,
    Op.GATED_LINEAR_ATTN: _gated_linear_attn,
    Op.GATED_DELTA_NET: _gated_delta_net,
    Op.SOLVE_TRI: _solve_tri,
    Op.LIGHTNING_INDEXER: _lightning_indexer,
    Op.DSV4_HC_COMB: _hyper_comb,
    Op.DSV4_HC_PRE: _hyper_pre,
    Op.DSV4_HC_POST: _hyper_post,
}
