"""Attention whose memory is one matrix per head: RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN and
GATED_DELTA_NET.

All walk over the tokens of every sequence and head at once. The result holds what each token gives,
(s, t, h, d), and then the states, (s, h, d, d). In the first and the third a state's rows are keys
and its columns values, in the other two it is the other way about. Gates of GATED_DELTA_NET are
logarithms; of its K kept states slot 0 is the newest, and slots without a token of their own are
left as they are.
"""

import math
from collections.abc import Callable

import torch

from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import Context, types_in

_F32 = frozenset({GGMLType.F32})
# Takes what the inputs hold for one token, each (s, h, d), and the state (s, h, d, d), which it
# updates; returns what the token gives (s, h, d).
_Token = Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor]


def _over_tokens(
    ctx: Context, node: Tensor, inputs: tuple[int, ...], state: Tensor, token: _Token
) -> Steps:
    """Walk over tokens [d, h, t] of `state.ne[1]` sequences."""
    dim, n_head, n_tokens, _ = node.require(inputs[0]).ne
    n_seqs = state.ne[1]
    shape = (n_seqs, n_tokens // n_seqs, n_head, dim)
    seen = [ctx.view(node.require(i)).view(shape) for i in inputs]
    before = ctx.view(state).view(n_seqs, n_head, dim, dim)
    flat, n_out = ctx.view(node).view(-1), n_tokens * n_head * dim
    out, now = flat[:n_out].view(shape), flat[n_out:].view(before.shape)

    def step() -> None:
        now.copy_(before)
        for t in range(shape[1]):
            out[:, t] = token([x[:, t] for x in seen], now)

    return [step]


def _outer(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return rows.unsqueeze(-1) * columns.unsqueeze(-2)


def _read_rows(state: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Mix the rows of the state by `query`."""
    return (query.unsqueeze(-2) @ state).squeeze(-2)


def _read_columns(state: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Mix the columns of the state by `query`."""
    return (state @ query.unsqueeze(-1)).squeeze(-1)


def _wkv6(ctx: Context, node: Tensor) -> Steps:
    dim, n_head = node.require(0).ne[:2]
    bonus = ctx.view(node.require(3)).view(n_head, dim, 1)

    def token(inputs: list[torch.Tensor], state: torch.Tensor) -> torch.Tensor:
        k, v, r, decay = inputs
        new = _outer(k, v)
        given = _read_rows(state + bonus * new, r)
        state.mul_(decay.unsqueeze(-1)).add_(new)
        return given

    return _over_tokens(ctx, node, (0, 1, 2, 4), node.require(5), token)


def _wkv7(ctx: Context, node: Tensor) -> Steps:
    def token(inputs: list[torch.Tensor], state: torch.Tensor) -> torch.Tensor:
        r, decay, k, v, a, b = inputs
        removed = _outer(_read_columns(state, a), b)
        state.mul_(decay.unsqueeze(-2)).add_(_outer(v, k)).add_(removed)
        return _read_columns(state, r)

    return _over_tokens(ctx, node, tuple(range(6)), node.require(6), token)


def _gated_linear_attn(ctx: Context, node: Tensor) -> Steps:
    scale = node.params.f32(0)

    def token(inputs: list[torch.Tensor], state: torch.Tensor) -> torch.Tensor:
        k, v, q, gate = inputs
        state.mul_(gate.unsqueeze(-1)).add_(_outer(k, v))
        return _read_rows(state, q * scale)

    return _over_tokens(ctx, node, tuple(range(4)), node.require(4), token)


def _keys(ctx: Context, keys: Tensor, values: Tensor) -> Callable[[int], torch.Tensor]:
    """Return a function that gives the keys (s, h, d) of a token, repeated for all value heads and
    sequences.
    """
    view = ctx.view(keys)
    n_head, n_seqs = values.ne[1], values.ne[3]
    if keys.ne[1] == n_head and keys.ne[3] == n_seqs:
        return lambda t: view[:, t]
    heads = torch.arange(n_head, device=ctx.device) % keys.ne[1]
    seqs = torch.arange(n_seqs, device=ctx.device) // (n_seqs // keys.ne[3])
    return lambda t: view[:, t][seqs][:, heads]


def _gated_delta_net(ctx: Context, node: Tensor) -> Steps:
    values = node.require(2)
    query, key = (_keys(ctx, node.require(i), values) for i in (0, 1))
    v, gate, beta, before = (ctx.view(node.require(i)) for i in (2, 3, 4, 5))
    n_slots, n_tokens = node.params.i32(0), values.ne[2]
    flat = ctx.view(node).view(-1)
    out, slots = flat[: v.numel()].view(v.shape), flat[v.numel() :].view(n_slots, *before.shape)
    state = slots[0] if n_slots == 1 else ctx.scratch(before.shape)
    scale = 1.0 / math.sqrt(values.ne[0])

    def step() -> None:
        state.copy_(before)
        for t in range(n_tokens):
            k = key(t)
            state.mul_(gate[:, t].exp().unsqueeze(-2))
            change = (v[:, t] - _read_columns(state, k)) * beta[:, t]
            state.add_(_outer(change, k))
            out[:, t] = _read_columns(state, query(t)) * scale
            age = n_tokens - 1 - t
            if n_slots > 1 and age < n_slots:
                slots[age].copy_(state)

    return [step]


KERNELS: dict[Op, Kernel[Context]] = {
    Op.RWKV_WKV6: Kernel(_wkv6, lambda node: types_in(node, _F32, *range(6))),
    Op.RWKV_WKV7: Kernel(_wkv7, lambda node: types_in(node, _F32, *range(7))),
    Op.GATED_LINEAR_ATTN: Kernel(_gated_linear_attn, lambda n: types_in(n, _F32, *range(5))),
    Op.GATED_DELTA_NET: Kernel(_gated_delta_net, lambda n: types_in(n, _F32, *range(6))),
}
