"""CONV_TRANSPOSE_1D, CONV_TRANSPOSE_2D and COL2IM_1D: every element of the source adds a window to
the result.

The windows of `app.ggml.windows` lie on the result here, one for each element of the source.
"""

from itertools import product

import torch

from app.ggml.ops import Op
from app.ggml.shapes_image import FLOATS
from app.ggml.tensor import Tensor
from app.ggml.windows import Windows
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import Context, as_float, target, types_in
from app.kernels.torch_ref.conv import conv_supported


def _windows(node: Tensor, axis: int) -> Windows:
    """Windows of the kernel on the result along one dimension, one per element of the source."""
    stride, n = node.params.i32(0), node.require(1).ne[axis]
    return Windows(node.ne[axis], node.require(0).ne[axis], stride, 0, 1, n)


def _transpose_1d(ctx: Context, node: Tensor) -> Steps:
    """As in two dimensions, with a height of one."""
    weights, steps = as_float(ctx, node.require(0))
    signal, out = ctx.view(node.require(1))[0].unsqueeze(2), ctx.view(node)[0].unsqueeze(2)
    flat = Windows(1, 1, 1, 0, 1, 1)
    return steps + _spread(signal, weights[0].unsqueeze(2), out, flat, _windows(node, 0))


def _transpose_2d(ctx: Context, node: Tensor) -> Steps:
    weights, steps = as_float(ctx, node.require(0))
    images, out = ctx.view(node.require(1)), ctx.view(node)
    return steps + _spread(images, weights, out, _windows(node, 1), _windows(node, 0))


def _spread(
    images: torch.Tensor, weights: torch.Tensor, out: torch.Tensor, high: Windows, wide: Windows
) -> Steps:
    """Images (n, ic, h, w) times weights (ic, oc, kh, kw) → out (n, oc, …)."""

    def step() -> None:
        out.zero_()
        for (row, _, rows), (column, _, columns) in product(high.places(), wide.places()):
            part = weights[:, :, row, column].t() @ images.flatten(2)
            out[..., rows, columns] += part.view(*part.shape[:2], *images.shape[2:])

    return [step]


def _col2im_1d(ctx: Context, node: Tensor) -> Steps:
    source = node.require(0)
    stride, channels, pad = (node.params.i32(i) for i in range(3))
    width = source.ne[0] // channels
    windows = Windows(node.ne[0], width, stride, -pad, 1, source.ne[1])
    columns, before = as_float(ctx, source)
    columns = columns.view(-1, channels, width)
    out, after = target(ctx, ctx.view(node), (channels, node.ne[0]))

    def step() -> None:
        out.zero_()
        for place, which, elements in windows.places():
            out[:, elements] += columns[which, :, place].t()

    return [*before, step, *after]


KERNELS: dict[Op, Kernel[Context]] = {
    Op.CONV_TRANSPOSE_1D: Kernel(_transpose_1d, conv_supported),
    Op.CONV_TRANSPOSE_2D: Kernel(_transpose_2d, conv_supported),
    Op.COL2IM_1D: Kernel(_col2im_1d, lambda node: types_in(node, FLOATS, 0)),
}
