"""IM2COL, IM2COL_3D, CONV_2D, CONV_3D and CONV_2D_DW.

All lay windows over images (`app.ggml.windows`): for each place of the window, one strided slice of
the image meets one slice of the windows. Columns (c, places…, windows…) turn a convolution into a
matrix product; they are made for some rows of windows at a time.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import torch

from app.ggml.ops import Op
from app.ggml.shapes_image import im2col_windows, windows_of
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.ggml.windows import Windows
from app.kernels.table import Kernel, Step, Steps
from app.kernels.torch_ref.context import Context, as_float, types_in

_PIECE_ELEMENTS = 1 << 22
_F32 = frozenset({GGMLType.F32})
_NARROW = frozenset({GGMLType.F32, GGMLType.F16})

_Slices = tuple[slice, ...]


def _places(windows: Sequence[Windows]) -> Iterator[tuple[tuple[int, ...], _Slices, _Slices]]:
    """For each place of a window of several dimensions: its numbers, the windows, the elements."""
    for places in product(*(list(axis.places()) for axis in windows)):
        yield (
            tuple(number for number, _, _ in places),
            tuple(which for _, which, _ in places),
            tuple(elements for _, _, elements in places),
        )


def _fill(columns: torch.Tensor, image: torch.Tensor, windows: Sequence[Windows]) -> None:
    """Fill columns (c, places…, windows…) from an image (c, …), zeros outside of it."""
    columns.zero_()
    for place, which, elements in _places(windows):
        at: tuple[int | slice, ...] = (slice(None), *place, *which)
        columns[at] = image[(slice(None), *elements)]


def _images(ctx: Context, image: Tensor, n_axes: int, channels: int) -> torch.Tensor:
    """Return images (n, c, …) of one, two or three dimensions."""
    view = ctx.view(image)
    if n_axes == 1:
        return view[0]
    if n_axes == 2:
        return view
    n = image.ne[3] // channels
    return view[: n * channels].view(n, channels, *view.shape[1:])


def _columns(ctx: Context, node: Tensor, windows: list[Windows], channels: int) -> Steps:
    """Write the columns of all images as (n, windows…, c, places…)."""
    n_axes = len(windows)
    images = _images(ctx, node.require(1), n_axes, channels)
    shape = (*(axis.n for axis in windows), channels, *(axis.width for axis in windows))
    places = range(n_axes + 1, 2 * n_axes + 2)
    columns = ctx.view(node).view(-1, *shape).permute(0, *places, *range(1, n_axes + 1))

    def step() -> None:
        for image, into in zip(images, columns, strict=True):
            _fill(into, image, windows)

    return [step]


def _im2col(ctx: Context, node: Tensor) -> Steps:
    windows = im2col_windows(node)[::-1]
    return _columns(ctx, node, windows, node.require(0).ne[len(windows)])


def _im2col_3d(ctx: Context, node: Tensor) -> Steps:
    windows = windows_of(node.op, node.require(1), node.require(0).ne[:3], node.params)[::-1]
    return _columns(ctx, node, windows, node.params.i32(9))


def _convolution(
    images: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
    ctx: Context,
    windows: list[Windows],
) -> Step:
    """Images (n, c, …) times weights (oc, c * places) → out (n, oc, windows…)."""
    channels, (rows, *others) = images.shape[1], windows
    depth = weights.shape[1]
    in_row = prod(axis.n for axis in others)
    height = max(1, min(rows.n, _PIECE_ELEMENTS // (depth * in_row)))
    room = ctx.scratch((depth * height * in_row,))
    places = [axis.width for axis in windows]

    def step() -> None:
        for image, result in zip(images, out, strict=True):
            for start in range(0, rows.n, height):
                some = [rows.some(start, min(height, rows.n - start)), *others]
                counts = [axis.n for axis in some]
                columns = room[: depth * prod(counts)].view(channels, *places, *counts)
                _fill(columns, image, some)
                part = weights @ columns.view(depth, -1)
                result[:, start : start + counts[0]] = part.view(-1, *counts)

    return step


def _conv(ctx: Context, node: Tensor) -> Steps:
    kernel, image = node.require(0), node.require(1)
    n_axes = 3 if node.op == Op.CONV_3D else 2
    channels = node.params.i32(9) if n_axes == 3 else image.ne[2]
    if kernel.n_elements == 0:
        return [ctx.view(node).zero_]
    windows = windows_of(node.op, image, kernel.ne[:n_axes], node.params)[::-1]
    images = _images(ctx, image, n_axes, channels)
    weights, steps = as_float(ctx, kernel)
    weights = weights.view(-1, channels * prod(axis.width for axis in windows))
    out = ctx.view(node).view(images.shape[0], weights.shape[0], *(axis.n for axis in windows))
    return [*steps, _convolution(images, weights, out, ctx, windows)]


def _conv_2d_dw(ctx: Context, node: Tensor) -> Steps:
    kernel, image = node.require(0), node.require(1)
    windows = windows_of(node.op, image, kernel.ne[:2], node.params)[::-1]
    weights, steps = as_float(ctx, kernel)
    images, out, every = ctx.view(image), ctx.view(node), (slice(None), slice(None))

    def step() -> None:
        out.zero_()
        for (row, column), which, elements in _places(windows):
            factor = weights[:, 0, row, column].view(-1, 1, 1)
            out[(*every, *which)].addcmul_(images[(*every, *elements)], factor)

    return [*steps, step]


def _im2col_supported(node: Tensor) -> str | None:
    return types_in(node, _NARROW if node.type == GGMLType.F16 else _F32, 1)


def conv_supported(node: Tensor) -> str | None:
    """Return why a convolution, source 0 of which is the kernel, cannot run here."""
    kernel = node.require(0)
    if kernel.type not in _NARROW:
        return f"kernel of type {kernel.type.name}, expected F32 or F16"
    return types_in(node, _F32, 1)


KERNELS: dict[Op, Kernel[Context]] = {
    Op.IM2COL: Kernel(_im2col, _im2col_supported),
    Op.IM2COL_3D: Kernel(_im2col_3d, _im2col_supported),
    Op.CONV_2D: Kernel(_conv, conv_supported),
    Op.CONV_3D: Kernel(_conv, conv_supported),
    Op.CONV_2D_DW: Kernel(_conv_2d_dw, conv_supported),
}
