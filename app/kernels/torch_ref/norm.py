"""NORM, RMS_NORM and L2_NORM over rows, GROUP_NORM over groups of channels.

Rows are read once for their statistics and once to be scaled, so the result may be the memory of
the source.
"""

from functools import partial

import torch

from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import Context, types_in

_F32 = frozenset({GGMLType.F32})


def _row_lengths(ctx: Context, x: torch.Tensor) -> tuple[torch.Tensor, Steps]:
    """Return the Euclidean length of each row (…, 1)."""
    length = ctx.scratch((*x.shape[:-1], 1))
    return length, [partial(torch.linalg.vector_norm, x, dim=-1, keepdim=True, out=length)]


def _rms_norm(ctx: Context, node: Tensor) -> Steps:
    x, result = ctx.view(node.require(0)), ctx.view(node)
    eps = ctx.constant([node.params.f32(0)], torch.float32)
    scale, steps = _row_lengths(ctx, x)
    return [
        *steps,
        partial(torch.addcmul, eps, scale, scale, value=1.0 / max(1, x.shape[-1]), out=scale),
        partial(torch.rsqrt, scale, out=scale),
        partial(torch.mul, x, scale, out=result),
    ]


def _l2_norm(ctx: Context, node: Tensor) -> Steps:
    x, result = ctx.view(node.require(0)), ctx.view(node)
    length, steps = _row_lengths(ctx, x)
    return [
        *steps,
        partial(torch.clamp, length, min=node.params.f32(0), out=length),
        partial(torch.div, x, length, out=result),
    ]


def _norm(ctx: Context, node: Tensor) -> Steps:
    x, result = ctx.view(node.require(0)), ctx.view(node)
    eps = ctx.constant([node.params.f32(0)], torch.float32)
    mean = ctx.scratch((*x.shape[:-1], 1))
    scale, lengths = _row_lengths(ctx, result)
    return [
        partial(torch.mean, x, dim=-1, keepdim=True, out=mean),
        partial(torch.sub, x, mean, out=result),
        *lengths,
        partial(torch.addcmul, eps, scale, scale, value=1.0 / max(1, x.shape[-1]), out=scale),
        partial(torch.rsqrt, scale, out=scale),
        partial(torch.mul, result, scale, out=result),
    ]


def _group_norm(ctx: Context, node: Tensor) -> Steps:
    """Channels (dimension 2) form groups of equal size; the last one may be smaller."""
    x, result = ctx.view(node.require(0)), ctx.view(node)
    eps, size = node.params.f32(1), -(-x.shape[1] // node.params.i32(0))
    whole = x.shape[1] // size * size
    pieces = [(slice(0, whole), size), (slice(whole, None), x.shape[1] - whole)]
    pairs = [
        (x[:, part].unflatten(1, (-1, n)), result[:, part].unflatten(1, (-1, n)))
        for part, n in pieces
        if n > 0
    ]

    def step() -> None:
        for source, out in pairs:
            variance, mean = torch.var_mean(source, (2, 3, 4), correction=0, keepdim=True)
            out.copy_((source - mean) * torch.rsqrt(variance + eps))

    return [step]


def _supported(node: Tensor) -> str | None:
    return types_in(node, _F32, 0)


KERNELS: dict[Op, Kernel[Context]] = {
    Op.NORM: Kernel(_norm, _supported),
    Op.RMS_NORM: Kernel(_rms_norm, _supported),
    Op.L2_NORM: Kernel(_l2_norm, _supported),
    Op.GROUP_NORM: Kernel(_group_norm, _supported),
}
