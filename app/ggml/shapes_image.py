"""Shapes and parameters of what encoders of images and sound use: convolution and its parts,
pooling, resampling, and attention in square windows.

Part of the tables of `app.ggml.shapes` (INFER) and `app.ggml.verify` (CHOSEN, where the client
chooses a type or a size). Rules follow the constructors of ggml.c at llama.cpp b11434.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum, IntFlag
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
    check_types,
    source,
)
from app.ggml.tensor import Shape, Tensor
from app.ggml.types import TRAITS, GGMLType
from app.ggml.windows import Windows

MAX_POOL_WIDTH: Final = 1 << 16
MAX_RESAMPLED: Final = 1 << 24
FLOATS: Final = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16})
_IM2COL_TYPES: Final = frozenset({GGMLType.F32, GGMLType.F16})


class PoolKind(IntEnum):
    """What POOL_1D and POOL_2D make of a window, parameter 0."""

    MAX = 0
    AVERAGE = 1


class ScaleMode(IntEnum):
    """How UPSCALE finds what lies between elements, the low byte of parameter 0."""

    NEAREST = 0
    BILINEAR = 1
    BICUBIC = 2


class ScaleFlag(IntFlag):
    """What else UPSCALE does, in parameter 0: corners fall on corners; shrinking averages."""

    ALIGN_CORNERS = 1 << 8
    ANTIALIAS = 1 << 9


_SCALE_BITS: Final = 0xFF | int(ScaleFlag.ALIGN_CORNERS) | int(ScaleFlag.ANTIALIAS)


def windows_of(op: Op, image: Tensor, widths: Sequence[int], numbers: Params) -> list[Windows]:
    """Return the windows on the first dimensions of `image`. Parameters are the strides of those
    dimensions, then the paddings, then the dilations.

    Raises: GraphError.
    """
    count = len(widths)
    found = []
    for i, width in enumerate(widths):
        stride, pad, dilation = (numbers.i32(i + group * count) for group in range(3))
        check_param(stride >= 1, op, f"stride {i}", stride, "at least 1")
        check_param(pad >= 0, op, f"padding {i}", pad, "at least 0")
        check_param(dilation >= 1, op, f"dilation {i}", dilation, "at least 1")
        windows = Windows.over(image.ne[i], width, stride, pad, dilation)
        want = f"room for {width} places in dimension {i}, {pad} more at both ends"
        check(windows.n >= 1, op, image, want=want)
        found.append(windows)
    return found


def im2col_windows(node: Tensor) -> list[Windows]:
    """Return the windows of IM2COL, two of them unless it is one-dimensional.

    Raises: GraphError.
    """
    op, kernel, image = node.op, node.require(0), node.require(1)
    strides, pads, dilations = ((node.params.i32(i), node.params.i32(i + 1)) for i in (0, 2, 4))
    count = 2 if node.params.i32(6) == 1 else 1
    packed = Params.pack(f"{3 * count}i", *strides[:count], *pads[:count], *dilations[:count])
    return windows_of(op, image, kernel.ne[:count], packed)


def _im2col(node: Tensor) -> None:
    """Sources are a kernel [kw, kh, ic, …] or [kw, ic], of which only the shape counts, and images
    [w, h, ic, n] or [w, ic, n].
    """
    op, kernel, image = node.op, node.require(0), node.require(1)
    check_param(node.params.i32(6) in (0, 1), op, "is_2D", node.params.i32(6), "0 or 1")
    windows = im2col_windows(node)
    two = len(windows) == 2
    channels = kernel.ne[2] if two else kernel.ne[1]
    same = image.ne[2] == channels if two else image.ne[1] == channels and image.ne[3] == 1
    check(same, op, kernel, image, want="as many channels in kernel and image")
    places = channels * kernel.ne[0] * (kernel.ne[1] if two else 1)
    rows, n = (windows[1].n, image.ne[3]) if two else (image.ne[2], 1)
    _chosen(node, _IM2COL_TYPES, (places, windows[0].n, rows, n))


def _im2col_3d(node: Tensor) -> None:
    """Sources are a kernel [kw, kh, kd, oc * ic] and images [w, h, d, n * ic]."""
    op, kernel, image, channels = node.op, node.require(0), node.require(1), node.params.i32(9)
    check_param(channels >= 1, op, "channels", channels, "at least 1")
    wide, high, deep = windows_of(op, image, kernel.ne[:3], node.params)
    places = channels * kernel.ne[0] * kernel.ne[1] * kernel.ne[2]
    n = image.ne[3] // channels
    _chosen(node, _IM2COL_TYPES, (places, wide.n, high.n, deep.n * n))


def _chosen(node: Tensor, types: frozenset[GGMLType], ne: Shape) -> None:
    check_types(node.op, types, node)
    check(node.ne == ne, node.op, node, want=f"a result {list(ne)}")


def _conv_2d(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are a kernel [kw, kh, ic, oc] and images [w, h, ic, n]."""
    kernel, image = source(op, sources, 0), source(op, sources, 1)
    check(kernel.ne[2] == image.ne[2], op, kernel, image, want="as many channels in both")
    check_gapless(op, kernel)
    wide, high = windows_of(op, image, kernel.ne[:2], params)
    return image.type, (wide.n, high.n, kernel.ne[3], image.ne[3])


def _conv_2d_dw(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are a kernel per channel [kw, kh, 1, c] and images [w, h, c, n]."""
    kernel, image = source(op, sources, 0), source(op, sources, 1)
    fits = kernel.ne[2] == 1 and kernel.ne[3] == image.ne[2]
    check(fits, op, kernel, image, want="a kernel [kw, kh, 1, c] for images [w, h, c]")
    wide, high = windows_of(op, image, kernel.ne[:2], params)
    return image.type, (wide.n, high.n, *image.ne[2:])


def keeps_channels_first(node: Tensor) -> bool:
    """Whether this is a CONV_2D_DW whose result lies as such images do that have the channels of an
    element side by side, without gaps.
    """
    if node.op != Op.CONV_2D_DW:
        return False
    width, height, channels, _ = node.ne
    size = TRAITS[node.type].type_size
    nb = (channels * size, width * channels * size, size, width * height * channels * size)
    return all(n == 1 or had == want for n, had, want in zip(node.ne, node.nb, nb, strict=True))


def _conv_3d(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are a kernel [kw, kh, kd, ic * oc] and images [w, h, d, ic * n]."""
    kernel, image = source(op, sources, 0), source(op, sources, 1)
    inner, n, outer = (params.i32(i) for i in (9, 10, 11))
    fits = min(inner, n, outer) >= 1 and kernel.ne[3] == inner * outer
    fits = fits and image.ne[3] == inner * n
    check(fits, op, kernel, image, want=f"{inner} * {outer} kernels and {inner} * {n} planes")
    check_gapless(op, kernel)
    wide, high, deep = windows_of(op, image, kernel.ne[:3], params)
    return GGMLType.F32, (wide.n, high.n, deep.n, outer * n)


def _stride(op: Op, params: Params) -> int:
    stride = params.i32(0)
    check_param(stride >= 1, op, "stride", stride, "at least 1")
    return stride


def _conv_transpose_1d(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are a kernel [k, oc, ic] and a signal [t, ic]."""
    kernel, signal, stride = source(op, sources, 0), source(op, sources, 1), _stride(op, params)
    fits = kernel.ne[2:] == (signal.ne[1], 1) and signal.ne[2:] == (1, 1)
    check(fits, op, kernel, signal, want="a kernel [k, oc, ic] for a signal [t, ic]")
    check(kernel.ne[0] > 0 and signal.ne[0] > 0, op, kernel, signal, want="no empty dimension")
    plain = params.i32(1) == 0 and params.i32(2) == 1
    check_param(plain, op, "padding", params.i32(1), f"0, and 1 as dilation {params.i32(2)}")
    length = (signal.ne[0] - 1) * stride + kernel.ne[0]
    return GGMLType.F32, (length, kernel.ne[1], 1, 1)


def _conv_transpose_2d(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are a kernel [kw, kh, oc, ic] and images [w, h, ic, n]."""
    kernel, image, stride = source(op, sources, 0), source(op, sources, 1), _stride(op, params)
    fits = kernel.ne[3] == image.ne[2] and 0 not in (*kernel.ne[:2], *image.ne[:2])
    check(fits, op, kernel, image, want="a kernel [kw, kh, oc, ic] for images [w, h, ic, n]")
    wide, high = ((image.ne[i] - 1) * stride + kernel.ne[i] for i in (0, 1))
    return GGMLType.F32, (wide, high, kernel.ne[2], image.ne[3])


def _col2im_1d(op: Op, sources: Sources, params: Params) -> Inferred:
    """The source is [k * oc, t]."""
    columns, stride = source(op, sources, 0), _stride(op, params)
    channels, pad = params.i32(1), params.i32(2)
    check_param(channels >= 1, op, "channels", channels, "at least 1")
    check_param(pad >= 0, op, "padding", pad, "at least 0")
    check_types(op, FLOATS, columns)
    check_gapless(op, columns)
    length = (columns.ne[1] - 1) * stride + columns.ne[0] // channels - 2 * pad
    fits = columns.ne[0] % channels == 0 and columns.ne[0] > 0 and columns.ne[1] > 0
    fits = fits and columns.ne[2:] == (1, 1) and length > 0
    check(fits, op, columns, want=f"columns [k * {channels}, t] that give more than {2 * pad}")
    return columns.type, (length, channels, 1, 1)


def pool_windows(op: Op, image: Tensor, params: Params) -> list[Windows]:
    """Return the windows of POOL_1D or POOL_2D.

    Raises: GraphError.
    """
    count = 2 if op == Op.POOL_2D else 1
    numbers = [params.i32(1 + i) for i in range(3 * count)]
    for size, width, pad in zip(image.ne, numbers[:count], numbers[2 * count :], strict=False):
        most = min(MAX_POOL_WIDTH, size + 2 * pad)
        check_param(1 <= width <= most, op, "window", width, f"1 to {most} in {size} elements")
    packed = Params.pack(f"{3 * count}i", *numbers[count:], *[1] * count)
    return windows_of(op, image, numbers[:count], packed)


def _pool(op: Op, sources: Sources, params: Params) -> Inferred:
    """The source is [w, …], for POOL_2D [w, h, …]."""
    image, kind = source(op, sources, 0), params.i32(0)
    check_param(kind in list(PoolKind), op, "kind", kind, "0 (max) or 1 (average)")
    sizes = [windows.n for windows in pool_windows(op, image, params)]
    ne = (*sizes, *image.ne[len(sizes) :])
    return GGMLType.F32, (ne[0], ne[1], ne[2], ne[3])


def _upscale(node: Tensor) -> None:
    """The source is an F32 image [w, h, c, n], of which any size may be made."""
    op, image, mode = node.op, node.require(0), node.params.i32(0)
    known = mode & ~_SCALE_BITS == 0 and mode & 0xFF in list(ScaleMode)
    if mode & ScaleFlag.ANTIALIAS:
        known = known and mode & 0xFF == ScaleMode.BILINEAR
    check_param(known, op, "mode", mode, "nearest, bilinear (antialiased, it may be) or bicubic")
    check(image.type == node.type == GGMLType.F32, op, image, node, want="F32 for F32")
    check(0 not in image.ne, op, image, want="an image with elements")
    longest = max(*image.ne, *node.ne)
    want = f"dimensions up to {MAX_RESAMPLED}, which float32 can count"
    check(longest <= MAX_RESAMPLED, op, image, node, want=want)


def _win_part(op: Op, sources: Sources, params: Params) -> Inferred:
    """The source is [c, w, h]; windows that reach over its end are filled up with zeros."""
    image = source(op, sources, 0)
    across, down, width = (params.i32(i) for i in range(3))
    check_param(width >= 1, op, "window", width, "at least 1")
    fits = (-(-image.ne[1] // width), -(-image.ne[2] // width)) == (across, down)
    fits = fits and image.ne[3] == 1 and image.type == GGMLType.F32
    check(fits, op, image, want=f"F32 in {across} by {down} windows of {width}")
    return GGMLType.F32, (image.ne[0], width, width, across * down)


def _win_unpart(node: Tensor) -> None:
    """The source is windows [c, w, w, n], of which an image [c, any, any] is made."""
    op, windows, width = node.op, node.require(0), node.params.i32(0)
    check_param(width >= 1, op, "window", width, "at least 1")
    count = -(-node.ne[1] // width) * -(-node.ne[2] // width)
    square = windows.ne[1:3] == (width, width) and windows.ne[3] >= count
    check(square, op, windows, want=f"at least {count} windows of {width}")
    fits = node.ne[0] == windows.ne[0] and node.ne[3] == 1
    check(fits and node.type == windows.type == GGMLType.F32, op, windows, node, want="F32 [c]")


def _get_rel_pos(op: Op, sources: Sources, params: Params) -> Inferred:
    """The source is a row per distance, [c, 2 * n - 1]."""
    rows = source(op, sources, 0)
    fits = rows.ne[1] % 2 == 1 and rows.ne[2:] == (1, 1) and rows.type == GGMLType.F16
    check(fits, op, rows, want="F16 rows [c, 2 * n - 1]")
    n = (rows.ne[1] + 1) // 2
    return GGMLType.F16, (rows.ne[0], n, n, 1)


def _add_rel_pos(op: Op, sources: Sources, params: Params) -> Inferred:
    """Sources are logits [n * n, w * h, b] and their biases across and down [n, w, h, b]."""
    logits, across, down = (source(op, sources, i) for i in range(3))
    n, wide, high, count = across.ne
    fits = across.ne == down.ne and logits.ne[:3] == (n * n, wide * high, count)
    check(
        fits and logits.ne[3] == 1, op, logits, across, down, want="[n * n, w * h, b], [n, w, h, b]"
    )
    check_gapless(op, logits, across, down)
    return logits.type, logits.ne


INFER: Final[dict[Op, InferFn]] = {
    Op.CONV_2D: _conv_2d,
    Op.CONV_2D_DW: _conv_2d_dw,
    Op.CONV_3D: _conv_3d,
    Op.CONV_TRANSPOSE_1D: _conv_transpose_1d,
    Op.CONV_TRANSPOSE_2D: _conv_transpose_2d,
    Op.COL2IM_1D: _col2im_1d,
    Op.POOL_1D: _pool,
    Op.POOL_2D: _pool,
    Op.WIN_PART: _win_part,
    Op.GET_REL_POS: _get_rel_pos,
    Op.ADD_REL_POS: _add_rel_pos,
}

CHOSEN: Final[dict[Op, Callable[[Tensor], None]]] = {
    Op.IM2COL: _im2col,
    Op.IM2COL_3D: _im2col_3d,
    Op.UPSCALE: _upscale,
    Op.WIN_UNPART: _win_unpart,
}
