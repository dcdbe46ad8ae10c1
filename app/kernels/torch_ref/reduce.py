"""Operations that look along a row: sums, means, the greatest element, sorting, causal masking; and
two that add up over all dimensions, COUNT_EQUAL and REPEAT_BACK.

Sorting gives I32 indices. ARGMAX names the last of several equal elements and ARGSORT keeps their
order; TOP_K promises no order among the chosen, as in ggml.
"""

from functools import partial

import torch

from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import FLOATS, Context, as_float, types_in

_F32 = frozenset({GGMLType.F32})


def _sum(ctx: Context, node: Tensor) -> Steps:
    x, steps = as_float(ctx, node.require(0))
    result = ctx.view(node).view(())
    return [*steps, lambda: result.copy_(x.sum())]


def _sum_rows(ctx: Context, node: Tensor) -> Steps:
    x, result = ctx.view(node.require(0)), ctx.view(node)
    return [partial(torch.sum, x, -1, keepdim=True, out=result)]


def _mean(ctx: Context, node: Tensor) -> Steps:
    x, result = ctx.view(node.require(0)), ctx.view(node)
    return [partial(torch.mean, x, -1, keepdim=True, out=result)]


def _cumsum(ctx: Context, node: Tensor) -> Steps:
    return [partial(torch.cumsum, ctx.view(node.require(0)), -1, out=ctx.view(node))]


def _repeat_back(ctx: Context, node: Tensor) -> Steps:
    """Add up what REPEAT would make of one element."""
    x, result = ctx.view(node.require(0)), ctx.view(node)
    split = [n for m, k in zip(x.shape, result.shape, strict=True) for n in (m // k, k)]
    apart = x.view(split)
    return [lambda: result.copy_(apart.sum((0, 2, 4, 6)))]


def _count_equal(ctx: Context, node: Tensor) -> Steps:
    a, b = ctx.view(node.require(0)), ctx.view(node.require(1))
    result = ctx.view(node).view(())
    return [lambda: result.copy_(torch.eq(a, b).sum())]


def _argmax(ctx: Context, node: Tensor) -> Steps:
    x, result = ctx.view(node.require(0))[0, 0], ctx.view(node)[0, 0, 0]
    last = x.shape[-1] - 1
    return [lambda: result.copy_(last - x.flip(-1).argmax(-1))]


def _argsort(ctx: Context, node: Tensor) -> Steps:
    x, result = ctx.view(node.require(0)), ctx.view(node)
    descending = node.params.i32(0) == 1
    return [lambda: result.copy_(x.argsort(stable=True, dim=-1, descending=descending))]


def _top_k(ctx: Context, node: Tensor) -> Steps:
    x, result = ctx.view(node.require(0)), ctx.view(node)
    k = node.ne[0]
    return [lambda: result.copy_(x.topk(k, -1).indices)]


def _diag_mask(ctx: Context, node: Tensor) -> Steps:
    value = 0.0 if node.op == Op.DIAG_MASK_ZERO else float("-inf")
    x, result = ctx.view(node.require(0)), ctx.view(node)
    n_past = node.params.i32(0)
    column = torch.arange(x.shape[-1], device=x.device)
    row = torch.arange(x.shape[-2], device=x.device)
    later = column > row.unsqueeze(1) + n_past
    return [lambda: result.copy_(x.masked_fill(later, value))]


def _floats(node: Tensor) -> str | None:
    return types_in(node, _F32, 0)


def _halves(node: Tensor) -> str | None:
    return types_in(node, FLOATS, 0)


def _indices(node: Tensor) -> str | None:
    source = node.require(0)
    if source.type != GGMLType.F32 or node.type != GGMLType.I32:
        return f"{source.type.name} to {node.type.name}, expected F32 to I32"
    return None if source.ne[0] else "empty rows"


def _count_supported(node: Tensor) -> str | None:
    types = [node.require(i).type.name for i in (0, 1)]
    return None if types == ["I32", "I32"] else f"sources {' and '.join(types)}, expected I32"


def _argsort_supported(node: Tensor) -> str | None:
    order = node.params.i32(0)
    return _indices(node) if order in (0, 1) else f"order {order}, expected 0 or 1"


KERNELS: dict[Op, Kernel[Context]] = {
    Op.SUM: Kernel(_sum, _halves),
    Op.SUM_ROWS: Kernel(_sum_rows, _floats),
    Op.MEAN: Kernel(_mean, _floats),
    Op.ARGMAX: Kernel(_argmax, _indices),
    Op.ARGSORT: Kernel(_argsort, _argsort_supported),
    Op.TOP_K: Kernel(_top_k, _indices),
    Op.DIAG_MASK_INF: Kernel(_diag_mask, _floats),
    Op.DIAG_MASK_ZERO: Kernel(_diag_mask, _floats),
    Op.CUMSUM: Kernel(_cumsum, _floats),
    Op.REPEAT_BACK: Kernel(_repeat_back, _floats),
    Op.COUNT_EQUAL: Kernel(_count_equal, _count_supported),
}
