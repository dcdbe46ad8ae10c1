"""What convolution, pooling, resampling and attention in windows mean, in float64 numpy: one loop
over the elements of the result, written from ggml's CPU sources. Resampling is torch's, in float64,
where torch has it.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from torch.nn.functional import interpolate

from app.ggml.ops import Op
from tests.kernels.harness import Array, Case

Values = list[Array | None]


def _get(values: Values, index: int) -> Array:
    value = values[index]
    assert value is not None
    return value


def _numbers(case: Case, first: int, count: int) -> tuple[int, ...]:
    return tuple(case.params.i32(first + i) for i in range(count))


def _counts(size: tuple[int, ...], width: tuple[int, ...], case: Case, at: int = 0) -> list[int]:
    """Number of windows per dimension, first dimension of the image last."""
    n = len(size)
    strides, pads = _numbers(case, at, n)[::-1], _numbers(case, at + n, n)[::-1]
    dilations = _numbers(case, at + 2 * n, n)[::-1]
    return [
        int((s + 2 * p - d * (w - 1) - 1) / stride) + 1
        for s, w, stride, p, d in zip(size, width, strides, pads, dilations, strict=True)
    ]


def _patches(image: Array, width: tuple[int, ...], case: Case) -> Iterator[tuple[object, Array]]:
    """Each window's number and its values (c, places…) of an image (c, …)."""
    n = len(width)
    strides, pads = _numbers(case, 0, n)[::-1], _numbers(case, n, n)[::-1]
    dilations = _numbers(case, 2 * n, n)[::-1]
    spans = [d * (w - 1) for d, w in zip(dilations, width, strict=True)]
    padded = np.pad(image, [(0, 0), *((p, p + s) for p, s in zip(pads, spans, strict=True))])
    for window in np.ndindex(*_counts(image.shape[1:], width, case)):
        where = [slice(None)]
        for i, stride, dilation, w in zip(window, strides, dilations, width, strict=True):
            where.append(slice(i * stride, i * stride + dilation * (w - 1) + 1, dilation))
        yield window, padded[tuple(where)]


def _columns(images: Array, width: tuple[int, ...], case: Case) -> Array:
    rows = [[patch.ravel() for _, patch in _patches(i, width, case)] for i in images]
    return np.array(rows)


def _shape_only(case: Case, index: int) -> tuple[int, ...]:
    source = case.sources[index]
    assert source is not None
    return (*source.ne, 1, 1, 1)[:4]


def _im2col(values: Values, case: Case) -> Array:
    kernel, image = _shape_only(case, 0), _get(values, 1)
    assert case.ne is not None
    shape = (*case.ne, 1, 1)[:4][::-1]
    if case.params.i32(6) == 0:
        # One dimension: its stride, padding and dilation come at 0, 2 and 4.
        packed = type(case.params).pack("3i", *(case.params.i32(i) for i in (0, 2, 4)))
        one = Case(case.name, case.op, case.sources, packed)
        return _columns(image[0], (kernel[0],), one).reshape(shape)
    return _columns(image, (kernel[1], kernel[0]), case).reshape(shape)


def _im2col_3d(values: Values, case: Case) -> Array:
    kernel, image = _shape_only(case, 0), _get(values, 1)
    assert case.ne is not None
    images = image.reshape(-1, case.params.i32(9), *image.shape[1:])
    return _columns(images, kernel[2::-1], case).reshape(case.ne[::-1])


def _conv(images: Array, kernels: Array, case: Case) -> Array:
    """Images (n, c, …) and kernels (oc, c, places…)."""
    width = kernels.shape[2:]
    counts = _counts(images.shape[2:], width, case)
    result = np.zeros((len(images), len(kernels), *counts))
    for n, image in enumerate(images):
        for window, patch in _patches(image, width, case):
            assert isinstance(window, tuple)
            result[(n, slice(None), *window)] = (kernels * patch).reshape(len(kernels), -1).sum(1)
    return result


def _conv_2d(values: Values, case: Case) -> Array:
    return _conv(_get(values, 1), _get(values, 0), case)


def _conv_3d(values: Values, case: Case) -> Array:
    kernel, image = _get(values, 0), _get(values, 1)
    channels = case.params.i32(9)
    images = image.reshape(-1, channels, *image.shape[1:])
    result = _conv(images, kernel.reshape(-1, channels, *kernel.shape[1:]), case)
    return result.reshape(-1, *result.shape[2:])


def _conv_2d_dw(values: Values, case: Case) -> Array:
    kernel, image = _get(values, 0), _get(values, 1)
    planes = [_conv(image[:, c : c + 1], kernel[c : c + 1], case) for c in range(len(kernel))]
    return np.concatenate(planes, axis=1)


def _conv_transpose_1d(values: Values, case: Case) -> Array:
    kernel, signal, stride = _get(values, 0)[0], _get(values, 1)[0, 0], case.params.i32(0)
    n_in, n_out, width = kernel.shape
    result = np.zeros((1, 1, n_out, (signal.shape[1] - 1) * stride + width))
    for i, o, t, k in np.ndindex(n_in, n_out, signal.shape[1], width):
        result[0, 0, o, t * stride + k] += kernel[i, o, k] * signal[i, t]
    return result


def _conv_transpose_2d(values: Values, case: Case) -> Array:
    kernel, images, stride = _get(values, 0), _get(values, 1), case.params.i32(0)
    high, wide = ((images.shape[i] - 1) * stride + kernel.shape[i] for i in (2, 3))
    result = np.zeros((len(images), kernel.shape[1], high, wide))
    for y, x, row, column in np.ndindex(*images.shape[2:], *kernel.shape[2:]):
        added = images[:, :, y, x] @ kernel[:, :, row, column]
        result[:, :, y * stride + row, x * stride + column] += added
    return result


def _col2im_1d(values: Values, case: Case) -> Array:
    columns = _get(values, 0)[0, 0]
    stride, channels, pad = _numbers(case, 0, 3)
    width = columns.shape[1] // channels
    length = (len(columns) - 1) * stride + width
    result = np.zeros((1, 1, channels, length))
    for t, c, k in np.ndindex(len(columns), channels, width):
        result[0, 0, c, t * stride + k] += columns[t, c * width + k]
    return result[..., pad : length - pad]


def _pooled(inside: list[float], places: int, case: Case) -> float:
    if case.params.i32(0) == 0:
        return max(inside, default=float(np.finfo(np.float32).min))
    counted = places if case.op == Op.POOL_2D else len(inside)
    return sum(inside) / max(1, counted)


def _pool(values: Values, case: Case) -> Array:
    image = _get(values, 0)
    n = 2 if case.op == Op.POOL_2D else 1
    width = _numbers(case, 1, n)[::-1]
    strides, pads = _numbers(case, 1 + n, n)[::-1], _numbers(case, 1 + 2 * n, n)[::-1]
    size = image.shape[4 - n :]
    counts = [
        (s + 2 * p - w) // stride + 1
        for s, w, stride, p in zip(size, width, strides, pads, strict=True)
    ]
    result = np.zeros((*image.shape[: 4 - n], *counts))
    for place in np.ndindex(*result.shape):
        starts = [i * s - p for i, s, p in zip(place[4 - n :], strides, pads, strict=True)]
        reach = [
            [x for x in range(start, start + w) if 0 <= x < s]
            for start, w, s in zip(starts, width, size, strict=True)
        ]
        inside = [float(image[(*place[: 4 - n], *at)]) for at in product(*reach)]
        result[place] = _pooled(inside, int(np.prod(width)), case)
    return result


def _upscale(values: Values, case: Case) -> Array:
    """Torch's, and for the outer dimensions, which torch does not resample, the nearest."""
    image, mode = _get(values, 0), case.params.i32(0)
    assert case.ne is not None
    wide, high, deep, n = (*case.ne, 1, 1)[:4]
    image = image[np.arange(n) * len(image) // n][:, np.arange(deep) * image.shape[1] // deep]
    align, smooth = bool(mode & 256), mode & 255
    if smooth == 0 and align:
        rows, columns = (
            np.arange(to) * (size - 1) // (to - 1)
            for to, size in zip((high, wide), image.shape[2:], strict=True)
        )
        return image[:, :, rows][..., columns]
    name = {0: "nearest", 1: "bilinear", 2: "bicubic"}[smooth]
    done = interpolate(
        torch.from_numpy(image),
        (high, wide),
        mode=name,
        align_corners=align if smooth else None,
        antialias=bool(mode & 512),
    )
    return done.numpy()


def _win_part(values: Values, case: Case) -> Array:
    image = _get(values, 0)[0]
    across, down, width = _numbers(case, 0, 3)
    result = np.zeros((across * down, width, width, image.shape[2]))
    for y, x in np.ndindex(*image.shape[:2]):
        window = y // width * across + x // width
        result[window, y % width, x % width] = image[y, x]
    return result


def _win_unpart(values: Values, case: Case) -> Array:
    windows, width = _get(values, 0), case.params.i32(0)
    assert case.ne is not None
    channels, wide, high = case.ne[:3]
    result = np.zeros((1, high, wide, channels))
    for y, x in np.ndindex(high, wide):
        window = y // width * -(-wide // width) + x // width
        result[0, y, x] = windows[window, y % width, x % width]
    return result


def _get_rel_pos(values: Values, case: Case) -> Array:
    rows = _get(values, 0)[0, 0]
    n = (len(rows) + 1) // 2
    return np.array([[[rows[n - 1 - x + y] for x in range(n)] for y in range(n)]])


def _add_rel_pos(values: Values, case: Case) -> Array:
    logits, across, down = (_get(values, i) for i in range(3))
    result = logits.copy().reshape(*across.shape[:3], across.shape[3], across.shape[3])
    for y, x in np.ndindex(*result.shape[3:]):
        result[..., y, x] += down[..., y] + across[..., x]
    return result.reshape(logits.shape)


ORACLES = {
    Op.IM2COL: _im2col,
    Op.IM2COL_3D: _im2col_3d,
    Op.CONV_2D: _conv_2d,
    Op.CONV_3D: _conv_3d,
    Op.CONV_2D_DW: _conv_2d_dw,
    Op.CONV_TRANSPOSE_1D: _conv_transpose_1d,
    Op.CONV_TRANSPOSE_2D: _conv_transpose_2d,
    Op.COL2IM_1D: _col2im_1d,
    Op.POOL_1D: _pool,
    Op.POOL_2D: _pool,
    Op.UPSCALE: _upscale,
    Op.WIN_PART: _win_part,
    Op.WIN_UNPART: _win_unpart,
    Op.GET_REL_POS: _get_rel_pos,
    Op.ADD_REL_POS: _add_rel_pos,
}
