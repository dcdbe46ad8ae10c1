"""Shapes and parameters of the operations that carry a state from token to token, of the triangular
solver that chunked forms of them use, and of DeepSeek's indexer and hyper-connections.

Part of `app.ggml.shapes.INFER`. A result that carries a state is flat: what each
token gives, then the states. Rules follow the constructors of ggml.c at llama.cpp b11434.
"""

import math
from typing import Final

from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.shape_checks import (
    InferFn,
    Inferred,
    Sources,
    check,
    check_gapless,
    check_param,
    optional,
    source,
)
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType

HYPER_STREAMS: Final = 4
MAX_SINKHORN_ROUNDS: Final = 1024


def _ssm_conv(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are the tokens with those before them [d_conv - 1 + t, d_inner, s] and a kernel
    [d_conv, d_inner].
    """
    x, kernel = source(op, sources, 0), source(op, sources, 1)
    n_tokens = x.ne[0] - kernel.ne[0] + 1
    fits = (
        kernel.ne[0] > 0
        and n_tokens >= 0
        and x.ne[1] == kernel.ne[1]
        and x.ne[3] == kernel.ne[2] == kernel.ne[3] == 1
    )
    check(fits, op, x, kernel, want="[d_conv - 1 + n, d_inner, n_seqs] and [d_conv, d_inner]")
    return GGMLType.F32, (x.ne[1], n_tokens, x.ne[2], 1)


def _ssm_scan(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are states [n, d, h, any], x [d, h, t, s], dt [h, t, s], A [1 or n, h], B and C
    [n, g, t, s] and the index I32 [s] of each sequence's state.
    """
    s, x, dt, a, b, c, ids = (source(op, sources, i) for i in range(7))
    n_state, (dim, n_head, n_tokens, n_seqs) = s.ne[0], x.ne
    check(s.ne[1:3] == (dim, n_head), op, s, x, want="states [n, d, h] for x [d, h]")
    check(dt.ne == (n_head, n_tokens, n_seqs, 1), op, x, dt, want="time steps [h, t, s]")
    check(a.ne in ((1, n_head, 1, 1), (n_state, n_head, 1, 1)), op, s, a, want="A [1 or n, h]")
    n_group = b.ne[1]
    fits = n_group > 0 and n_head % n_group == 0 and b.ne == (n_state, n_group, n_tokens, n_seqs)
    check(fits and b.ne == c.ne, op, x, b, c, want="B and C [n, g, t, s], g a divisor of h")
    check(ids.type == GGMLType.I32 and ids.ne == (n_seqs, 1, 1, 1), op, ids, want="I32 ids [s]")
    check_gapless(op, s, dt, a)
    n_slots = params.i32(0)
    want = "at least 1, and 1 with a decay for each state"
    check_param(n_slots == 1 or (n_slots > 1 and a.ne[0] == 1), op, "K", n_slots, want)
    n_states = n_slots * n_state * dim * n_head * n_seqs
    return GGMLType.F32, (x.n_elements + n_states, 1, 1, 1)


def _state_of(op: Op, state: Tensor, tokens: Tensor) -> Inferred:
    """Result for tokens [d, h, t] and states of d * d * h elements, `state.ne[1]` of them."""
    dim, n_head, n_tokens, _ = tokens.ne
    n_seqs = state.ne[1]
    fits = n_seqs > 0 and state.n_elements == dim * dim * n_head * n_seqs
    check(fits, op, tokens, state, want="a state [d * d * h, n_seqs]")
    check(n_tokens % n_seqs == 0, op, tokens, state, want="as many tokens for each sequence")
    return GGMLType.F32, (dim * n_head, n_tokens + dim * n_seqs, 1, 1)


def _per_token(op: Op, sources: Sources, *indices: int) -> Tensor:
    """Check that the named sources are equal in shape [d, h, t] and without gaps."""
    tensors = [source(op, sources, i) for i in indices]
    same = all(t.ne == tensors[0].ne for t in tensors) and tensors[0].ne[3] == 1
    check(same, op, *tensors, want="equal shapes [d, h, t]")
    check_gapless(op, *tensors)
    return tensors[0]


def _wkv6(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are k, v, r [d, h, t], the first token's bonus [d, h], decays [d, h, t], state."""
    tokens = _per_token(op, sources, 0, 1, 2, 4)
    bonus, state = source(op, sources, 3), source(op, sources, 5)
    check(bonus.n_elements == tokens.ne[0] * tokens.ne[1], op, tokens, bonus, want="a bonus [d, h]")
    check_gapless(op, bonus, state)
    return _state_of(op, state, tokens)


def _wkv7(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are r, w, k, v, a, b [d, h, t] and the state."""
    tokens, state = _per_token(op, sources, *range(6)), source(op, sources, 6)
    check_gapless(op, state)
    return _state_of(op, state, tokens)


def _gated_linear_attn(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are k, v, q, g [d, h, t] and the state."""
    tokens, state = _per_token(op, sources, *range(4)), source(op, sources, 4)
    check_gapless(op, state)
    scale = params.f32(0)
    check_param(math.isfinite(scale), op, "scale", scale, "a finite number")
    return _state_of(op, state, tokens)


def _gated_delta_net(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are q, k [d, hk, t, sk], v [d, h, t, s], g [1 or d, h, t, s], beta [1, h, t, s] and
    the state [d, d, h, s].
    """
    q, k, v, g, beta, state = (source(op, sources, i) for i in range(6))
    dim, n_head, n_tokens, n_seqs = v.ne
    for keys in (q, k):
        fits = keys.ne[0] == dim and keys.ne[2] == n_tokens and keys.ne[1] > 0 and keys.ne[3] > 0
        fits = fits and n_seqs % keys.ne[3] == 0
        check(fits, op, keys, v, want="keys [d, any, t, divisor of s] for values [d, h, t, s]")
    gated = g.ne[0] in (1, dim) and g.ne[1:] == v.ne[1:] and beta.ne == (1, *v.ne[1:])
    check(gated, op, v, g, beta, want="gates [1 or d, h, t, s] and [1, h, t, s]")
    check(state.ne == (dim, dim, n_head, n_seqs), op, v, state, want="a state [d, d, h, s]")
    check_gapless(op, g, beta, state)
    n_slots = params.i32(0)
    check_param(n_slots >= 1, op, "K", n_slots, "at least 1")
    return GGMLType.F32, (dim * n_head, (n_tokens + n_slots * dim) * n_seqs, 1, 1)


def _solve_tri(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are lower triangular A [n, n, …] and B [k, n, …]."""
    a, b = source(op, sources, 0), source(op, sources, 1)
    fits = a.ne[0] == a.ne[1] and a.ne[1:] == b.ne[1:]
    check(fits, op, a, b, want="square matrices [n, n] and right sides [k, n]")
    check_gapless(op, a, b)
    return GGMLType.F32, b.ne


def _lightning_indexer(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are q [d, h, t, s], k [d, 1, n_kv, s], weights [h, t, 1, s] and a mask
    [n_kv, t, 1, divisor of s].
    """
    q, k, weights, mask = (source(op, sources, i) for i in range(4))
    dim, n_head, n_tokens, n_seqs = q.ne
    n_kv = k.ne[2]
    check(k.ne == (dim, 1, n_kv, n_seqs), op, q, k, want="keys [d, 1, n_kv, s]")
    check(weights.ne == (n_head, n_tokens, 1, n_seqs), op, q, weights, want="weights [h, t, 1, s]")
    fits = mask.ne[:3] == (n_kv, n_tokens, 1) and mask.ne[3] > 0 and n_seqs % mask.ne[3] == 0
    check(fits and mask.type == GGMLType.F16, op, q, k, mask, want="an F16 mask [n_kv, t]")
    return GGMLType.F32, (n_kv, n_tokens, 1, n_seqs)


def _hyper_comb(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are mixes [(2 + n) * n, t], scales [>= 3] and a base [(2 + n) * n]; n is 4."""
    mixes, scale, base = (source(op, sources, i) for i in range(3))
    n = HYPER_STREAMS
    n_mix = (2 + n) * n
    check(mixes.ne[0] == n_mix and mixes.ne[2:] == (1, 1), op, mixes, want=f"mixes [{n_mix}, t]")
    check(scale.ne[0] >= 3 and scale.ne[1:] == (1, 1, 1), op, scale, want="scales [>= 3]")
    check(base.ne == (n_mix, 1, 1, 1), op, base, want=f"a base [{n_mix}]")
    eps, rounds = params.f32(0), params.i32(1)
    check_param(math.isfinite(eps), op, "eps", eps, "a finite number")
    want = f"1 to {MAX_SINKHORN_ROUNDS}"
    check_param(1 <= rounds <= MAX_SINKHORN_ROUNDS, op, "n_iter", rounds, want)
    return GGMLType.F32, (n, n, mixes.ne[1], 1)


def _hyper_pre(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are x [e, n, t] and weights [n, t], or gates [e, n, t]."""
    x, weights = source(op, sources, 0), source(op, sources, 1)
    scale, gated = params.f32(0), params.i32(1)
    check_param(gated in (0, 1), op, "the gate flag", gated, "0 or 1")
    check_param(math.isfinite(scale), op, "scale", scale, "a finite number")
    want = x.ne if gated else (x.ne[1], x.ne[2], 1, 1)
    fits = x.ne[1] > 0 and x.ne[3] == 1 and weights.ne == want
    check(fits, op, x, weights, want=f"x [e, n, t] and weights {list(want)}")
    return GGMLType.F32, (x.ne[0], x.ne[2], 1, 1)


def _hyper_post(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are x [e, t], the residual [e, n, t], weights [n, t] and, it may be, [n, n, t]."""
    x, residual, post = (source(op, sources, i) for i in range(3))
    comb = optional(sources, 3)
    (n_embd, n_tokens), n = x.ne[:2], residual.ne[1]
    check(x.ne[2:] == (1, 1), op, x, want="x [e, t]")
    check(n > 0 and residual.ne == (n_embd, n, n_tokens, 1), op, x, residual, want="[e, n, t]")
    check(post.ne == (n, n_tokens, 1, 1), op, residual, post, want="weights [n, t]")
    if comb is not None:
        check(comb.ne == (n, n, n_tokens, 1), op, residual, comb, want="a mixture [n, n, t]")
    return GGMLType.F32, residual.ne


INFER: Final[dict[Op, InferFn]] = {
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
