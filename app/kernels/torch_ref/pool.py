"""POOL_1D and POOL_2D: the greatest or the average element of each window, one dimension after the
other.

What lies outside is no candidate for the greatest; a window with nothing inside gives the lowest
finite number, as in ggml. The average of POOL_1D is over the elements inside, that of POOL_2D over
all places of the window.
"""

from functools import partial

import torch

from app.ggml.ops import Op
from app.ggml.shapes_image import PoolKind, pool_windows
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.ggml.windows import Windows
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import Context, as_float, types_in

_F32 = frozenset({GGMLType.F32})
_NARROW = frozenset({GGMLType.F32, GGMLType.F16})
_LOWEST = torch.finfo(torch.float32).min


def _reduce(source: torch.Tensor, windows: Windows, out: torch.Tensor, kind: int) -> None:
    """Reduce the last dimension of `source` (…, size) by windows → out (…, n)."""
    out.fill_(_LOWEST if kind == PoolKind.MAX else 0.0)
    for _, which, elements in windows.places():
        part = out[..., which]
        if kind == PoolKind.MAX:
            torch.maximum(part, source[..., elements], out=part)
        else:
            part += source[..., elements]


def _n_inside(windows: Windows, device: torch.device) -> torch.Tensor:
    """Return how many elements each window has, at least one so that it can divide."""
    counts = torch.zeros(windows.n, device=device)
    for _, which, _ in windows.places():
        counts[which] += 1
    return counts.clamp_(min=1)


def _pool_1d(ctx: Context, node: Tensor) -> Steps:
    source, kind = node.require(0), node.params.i32(0)
    x, steps = as_float(ctx, source)
    (windows,) = pool_windows(node.op, source, node.params)
    result = ctx.view(node)
    steps = [*steps, partial(_reduce, x, windows, result, kind)]
    if kind == PoolKind.AVERAGE:
        steps.append(partial(result.div_, _n_inside(windows, ctx.device)))
    return steps


def _pool_2d(ctx: Context, node: Tensor) -> Steps:
    source, kind = node.require(0), node.params.i32(0)
    x, steps = as_float(ctx, source)
    wide, high = pool_windows(node.op, source, node.params)
    result, half = ctx.view(node), ctx.scratch((*x.shape[:3], wide.n))
    steps = [
        *steps,
        partial(_reduce, x, wide, half, kind),
        partial(_reduce, half.transpose(2, 3), high, result.transpose(2, 3), kind),
    ]
    if kind == PoolKind.AVERAGE:
        steps.append(partial(result.div_, wide.width * high.width))
    return steps


def _supported(node: Tensor) -> str | None:
    source = node.require(0)
    if source.type not in _NARROW:
        return f"source of type {source.type.name}, expected F32 or F16"
    return types_in(node, _F32)


KERNELS: dict[Op, Kernel[Context]] = {
    Op.POOL_1D: Kernel(_pool_1d, _supported),
    Op.POOL_2D: Kernel(_pool_2d, _supported),
}
