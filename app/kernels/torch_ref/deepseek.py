"""DeepSeek's own: LIGHTNING_INDEXER, which scores the keys that attention shall look at, and the
hyper-connections DSV4_HC_COMB, DSV4_HC_PRE and DSV4_HC_POST between n residual streams.

LIGHTNING_INDEXER: sum over heads of relu(q · k) * weight, plus the mask. DSV4_HC_COMB makes a
matrix (from stream, to stream) per token, softmaxed and then balanced in turns until rows and
columns sum to one. DSV4_HC_PRE mixes the streams into one, DSV4_HC_POST spreads one over them.
"""

from functools import partial

import torch

from app.ggml.ops import Op
from app.ggml.shapes_recurrent import HYPER_STREAMS
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import READABLE, Context, as_float, types_in

_F32 = frozenset({GGMLType.F32})


def _lightning_indexer(ctx: Context, node: Tensor) -> Steps:
    q, weights, mask = (ctx.view(node.require(i)) for i in (0, 2, 3))
    keys, steps = as_float(ctx, node.require(1))
    result = ctx.view(node)
    n_seqs, _, n_head, _ = q.shape
    scores = ctx.scratch(result.shape[2:])

    def step() -> None:
        for s in range(n_seqs):
            out = result[s, 0]
            out.copy_(mask[s % mask.shape[0], 0])
            for h in range(n_head):
                torch.mm(q[s, :, h], keys[s, :, 0].t(), out=scores)
                out.addcmul_(scores.relu_(), weights[s, 0, :, h : h + 1])

    return [*steps, step]


def _hyper_comb(ctx: Context, node: Tensor) -> Steps:
    n = HYPER_STREAMS
    mixes, base = ctx.view(node.require(0))[0, 0, :, 2 * n :], ctx.view(node.require(2))
    scale = ctx.view(node.require(1))[0, 0, 0, 2]
    shift, result = base[0, 0, 0, 2 * n :], ctx.view(node)[0]
    eps, rounds = node.params.f32(0), node.params.i32(1)

    def step() -> None:
        logits = (mixes * scale + shift).view(-1, n, n)
        torch.add(torch.softmax(logits, -1), eps, out=result)
        result.div_(result.sum(-2, keepdim=True) + eps)
        for _ in range(rounds - 1):
            result.div_(result.sum(-1, keepdim=True) + eps)
            result.div_(result.sum(-2, keepdim=True) + eps)

    return [step]


def _hyper_pre(ctx: Context, node: Tensor) -> Steps:
    x, weights = ctx.view(node.require(0))[0], ctx.view(node.require(1))
    result = ctx.view(node)[0, 0]
    scale, gated = node.params.f32(0), node.params.i32(1)

    def step() -> None:
        factors = weights[0].sigmoid() if gated else weights[0, 0].unsqueeze(-1)
        torch.mul((x * factors).sum(1), scale, out=result)

    return [step]


def _hyper_post(ctx: Context, node: Tensor) -> Steps:
    x, post = (ctx.view(node.require(i))[0, 0] for i in (0, 2))
    residual, result = ctx.view(node.require(1))[0], ctx.view(node)[0]
    own = partial(torch.mul, x.unsqueeze(1), post.unsqueeze(2), out=result)
    mixture = node.optional(3)
    if mixture is None:
        return [own, partial(result.add_, residual)]
    comb = ctx.view(mixture)[0].transpose(1, 2)
    return [own, partial(result.baddbmm_, comb, residual)]


def _indexer_supported(node: Tensor) -> str | None:
    keys, mask = node.require(1), node.require(3)
    if keys.type not in READABLE:
        return f"keys of type {keys.type.name} cannot be decoded"
    if mask.type != GGMLType.F16:
        return f"mask of type {mask.type.name}, expected F16"
    return types_in(node, _F32, 0, 2)


KERNELS: dict[Op, Kernel[Context]] = {
    Op.LIGHTNING_INDEXER: Kernel(_lightning_indexer, _indexer_supported),
    Op.DSV4_HC_COMB: Kernel(_hyper_comb, lambda node: types_in(node, _F32, 0, 1, 2)),
    Op.DSV4_HC_PRE: Kernel(_hyper_pre, lambda node: types_in(node, _F32, 0, 1)),
    Op.DSV4_HC_POST: Kernel(_hyper_post, lambda node: types_in(node, _F32, 0, 1, 2, 3)),
}
