"""Operations that put elements in other places or make new ones: ACC and SET (a part of a whole),
PAD, PAD_REFLECT_1D, ROLL, DIAG, TRI, FILL, ARANGE and TIMESTEP_EMBEDDING.

The verifier has checked every place and number (`app.ggml.shapes_arrange`). Only ACC, SET and FILL
may write to the memory of their source.
"""

import math
from functools import partial

import torch

from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import DTYPES, Context, same_memory, types_in

_F32 = frozenset({GGMLType.F32})
_FILLABLE = frozenset({GGMLType.F32, GGMLType.F16})
_MOVABLE = frozenset(DTYPES)


def _part(node: Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return the place of source 1 within the result."""
    ne, size = node.require(1).ne, whole.element_size()
    strides = [node.params.i32(i) // size for i in (2, 1, 0)]
    start = whole.storage_offset() + node.params.i32(3) // size
    return whole.as_strided(ne[::-1], [*strides, 1], start)


def _into(ctx: Context, node: Tensor) -> Steps:
    source, part, result = node.require(0), node.require(1), ctx.view(node)
    steps: Steps = []
    if not same_memory(source, node):
        steps.append(partial(result.copy_, ctx.view(source)))
    if part.n_elements:
        place = _part(node, result)
        write = place.add_ if node.op == Op.ACC else place.copy_
        steps.append(partial(write, ctx.view(part)))
    return steps


def _pad(ctx: Context, node: Tensor) -> Steps:
    x, result = ctx.view(node.require(0)), ctx.view(node)
    before = [node.params.i32(2 * i) for i in (3, 2, 1, 0)]
    if node.params.i32(8) == 0:
        inner = result
        for dim, (start, n) in enumerate(zip(before, x.shape, strict=True)):
            inner = inner.narrow(dim, start, n)
        return [partial(result.zero_), partial(inner.copy_, x)]

    def step() -> None:
        source = x
        for dim, start in enumerate(before):
            places = torch.arange(result.shape[dim], device=x.device) - start
            source = source.index_select(dim, places.remainder_(x.shape[dim]))
        result.copy_(source)

    return [step]


def _pad_reflect_1d(ctx: Context, node: Tensor) -> Steps:
    x, result = ctx.view(node.require(0)), ctx.view(node)
    before, after, n = node.params.i32(0), node.params.i32(1), x.shape[-1]

    def step() -> None:
        result[..., before : before + n].copy_(x)
        result[..., :before].copy_(x[..., 1 : before + 1].flip(-1))
        result[..., before + n :].copy_(x[..., n - 1 - after : n - 1].flip(-1))

    return [step]


def _roll(ctx: Context, node: Tensor) -> Steps:
    x, result = ctx.view(node.require(0)), ctx.view(node)
    shifts = [node.params.i32(i) for i in (3, 2, 1, 0)]
    return [lambda: result.copy_(torch.roll(x, shifts, (0, 1, 2, 3)))]


def _diag(ctx: Context, node: Tensor) -> Steps:
    x, result = ctx.view(node.require(0)), ctx.view(node)
    diagonal = result.diagonal(dim1=-2, dim2=-1)
    return [partial(result.zero_), partial(diagonal.copy_, x[..., 0, :])]


def _tri(ctx: Context, node: Tensor) -> Steps:
    """Keep the upper triangle (kinds 0 and 1) or the lower one, with (even) or without its
    diagonal.
    """
    x, result = ctx.view(node.require(0)), ctx.view(node)
    upper, without = node.params.i32(0) < 2, node.params.i32(0) % 2
    if upper:
        return [partial(torch.triu, x, without, out=result)]
    return [partial(torch.tril, x, -without, out=result)]


def _fill(ctx: Context, node: Tensor) -> Steps:
    return [partial(ctx.view(node).fill_, node.params.f32(0))]


def _arange(ctx: Context, node: Tensor) -> Steps:
    result = ctx.view(node)[0, 0, 0]
    start, step = node.params.f32(0), node.params.f32(2)
    count = node.ne[0]
    number = ctx.scratch((count,))
    return [
        partial(torch.arange, 0, count, out=number),
        partial(torch.mul, number, step, out=result),
        partial(result.add_, start),
    ]


def _timestep_embedding(ctx: Context, node: Tensor) -> Steps:
    dim, period = node.params.i32(0), node.params.i32(1)
    half = dim // 2
    times, result = ctx.view(node.require(0))[0, 0, 0].unsqueeze(1), ctx.view(node)[0, 0]

    def step() -> None:
        number = torch.arange(half, dtype=torch.float32, device=times.device)
        angle = times * torch.exp(number * (-math.log(period) / max(1, half)))
        result[:, :half].copy_(angle.cos())
        result[:, half : 2 * half].copy_(angle.sin())
        result[:, 2 * half :].zero_()

    return [step]


def _into_supported(node: Tensor) -> str | None:
    if node.op == Op.ACC:
        return types_in(node, _F32, 0, 1)
    return types_in(node, _MOVABLE, 0, 1)


def _movable(node: Tensor) -> str | None:
    return types_in(node, _MOVABLE, 0)


def _floats(node: Tensor) -> str | None:
    return types_in(node, _F32, 0)


def _fillable(node: Tensor) -> str | None:
    return types_in(node, _FILLABLE, 0)


KERNELS: dict[Op, Kernel[Context]] = {
    Op.ACC: Kernel(_into, _into_supported),
    Op.SET: Kernel(_into, _into_supported),
    Op.PAD: Kernel(_pad, _movable),
    Op.PAD_REFLECT_1D: Kernel(_pad_reflect_1d, _movable),
    Op.ROLL: Kernel(_roll, _movable),
    Op.DIAG: Kernel(_diag, _movable),
    Op.TRI: Kernel(_tri, _floats),
    Op.FILL: Kernel(_fill, _fillable),
    Op.ARANGE: Kernel(_arange, _floats),
    Op.TIMESTEP_EMBEDDING: Kernel(_timestep_embedding, _floats),
}
