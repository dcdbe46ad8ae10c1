"""Mamba's SSM_CONV and SSM_SCAN, and SOLVE_TRI, which chunked recurrences use.

SSM_CONV slides a kernel of its own over each channel. SSM_SCAN walks over the tokens: its state
(s, h, d, n) decays by exp(softplus(dt) * A), takes in x * softplus(dt) * B and gives state * C.
Sequence i starts from state ids[i]. Of K kept states slot 0 is the newest; slots without a token of
their own are left as they are.
"""

from functools import partial

import torch
from torch.nn.functional import softplus

from app.errors import GraphError
from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import Context, types_in

_F32 = frozenset({GGMLType.F32})


def _ssm_conv(ctx: Context, node: Tensor) -> Steps:
    x, kernel = ctx.view(node.require(0))[0], ctx.view(node.require(1))[0, 0]
    result = ctx.view(node)[0].transpose(1, 2)
    n_tokens = result.shape[-1]

    def step() -> None:
        torch.mul(x[..., :n_tokens], kernel[:, :1], out=result)
        for i in range(1, kernel.shape[1]):
            result.addcmul_(x[..., i : i + n_tokens], kernel[:, i : i + 1])

    return [step]


def _ssm_scan(ctx: Context, node: Tensor) -> Steps:
    states = ctx.view(node.require(0))
    x, dt, b, c = (ctx.view(node.require(i)) for i in (1, 2, 4, 5))
    decay, ids = ctx.view(node.require(3))[0, 0].unsqueeze(1), ctx.view(node.require(6))[0, 0, 0]
    n_seqs, n_tokens, n_head = x.shape[:3]
    n_slots = node.params.i32(0)
    flat = ctx.view(node).view(-1)
    out = flat[: x.numel()].view(x.shape)
    slots = flat[x.numel() :].view(n_slots, n_seqs, *states.shape[1:])
    state = slots[0]
    per_group = n_head // b.shape[2]

    def step() -> None:
        _check_ids(node, ids, states.shape[0])
        state.copy_(states[ids.to(torch.int64)])
        for t in range(n_tokens):
            width = softplus(dt[0, :, t]).view(n_seqs, n_head, 1, 1)
            into = b[:, t].repeat_interleave(per_group, 1)
            out_of = c[:, t].repeat_interleave(per_group, 1)
            state.mul_(torch.exp(width * decay))
            state.addcmul_(x[:, t].unsqueeze(-1) * width, into.unsqueeze(-2))
            out[:, t] = (state @ out_of.unsqueeze(-1)).squeeze(-1)
            age = n_tokens - 1 - t
            if 0 < age < n_slots:
                slots[age].copy_(state)

    return [step]


def _check_ids(node: Tensor, ids: torch.Tensor, count: int) -> None:
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= count:
        raise GraphError(f"SSM_SCAN '{node.name}': states {low}…{high}: expected 0…{count - 1}")


def _solve_tri(ctx: Context, node: Tensor) -> Steps:
    a, b, result = ctx.view(node.require(0)), ctx.view(node.require(1)), ctx.view(node)
    return [partial(torch.linalg.solve_triangular, a, b, upper=False, out=result)]


KERNELS: dict[Op, Kernel[Context]] = {
    Op.SSM_CONV: Kernel(_ssm_conv, lambda node: types_in(node, _F32, 0, 1)),
    Op.SSM_SCAN: Kernel(_ssm_scan, lambda node: types_in(node, _F32, *range(6))),
    Op.SOLVE_TRI: Kernel(_solve_tri, lambda node: types_in(node, _F32, 0, 1)),
}
