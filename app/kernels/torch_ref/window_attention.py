"""Attention in square windows, as segment-anything has it: WIN_PART cuts an image into windows,
WIN_UNPART puts them together, GET_REL_POS looks up a row per distance, ADD_REL_POS adds biases per
row and per column to logits.
"""

from functools import partial

import torch

from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import Context, types_in

_F32 = frozenset({GGMLType.F32})
_F16 = frozenset({GGMLType.F16})


def _win_part(ctx: Context, node: Tensor) -> Steps:
    image, windows = ctx.view(node.require(0))[0], ctx.view(node)
    across, down, width = (node.params.i32(i) for i in range(3))
    height, length, channels = image.shape
    whole = ctx.scratch((down * width, across * width, channels))
    cut = whole.view(down, width, across, width, channels).transpose(1, 2)
    into = windows.view(down, across, width, width, channels)
    return [whole.zero_, partial(whole[:height, :length].copy_, image), partial(into.copy_, cut)]


def _win_unpart(ctx: Context, node: Tensor) -> Steps:
    windows, image = ctx.view(node.require(0)), ctx.view(node)[0]
    width, channels = node.params.i32(0), node.ne[0]
    across, down = -(-node.ne[1] // width), -(-node.ne[2] // width)
    cut = windows[: down * across].unflatten(0, (down, across)).transpose(1, 2)
    whole = ctx.scratch((down * width, across * width, channels))
    joined = whole.view(down, width, across, width, channels)
    part = whole[: node.ne[2], : node.ne[1]]
    return [partial(joined.copy_, cut), partial(image.copy_, part)]


def _get_rel_pos(ctx: Context, node: Tensor) -> Steps:
    rows, result = ctx.view(node.require(0))[0, 0], ctx.view(node)[0]
    n = node.ne[1]
    place = torch.arange(n, device=ctx.device)
    distance = place.unsqueeze(1) + (n - 1 - place)
    return [lambda: result.copy_(rows[distance])]


def _add_rel_pos(ctx: Context, node: Tensor) -> Steps:
    logits, across, down = (ctx.view(node.require(i)) for i in range(3))
    n = across.shape[3]
    shape = (*across.shape[:3], n, n)
    pairs, result = logits.view(shape), ctx.view(node).view(shape)
    return [
        partial(torch.add, pairs, down.unsqueeze(4), out=result),
        partial(result.add_, across.unsqueeze(3)),
    ]


KERNELS: dict[Op, Kernel[Context]] = {
    Op.WIN_PART: Kernel(_win_part, lambda node: types_in(node, _F32, 0)),
    Op.WIN_UNPART: Kernel(_win_unpart, lambda node: types_in(node, _F32, 0)),
    Op.GET_REL_POS: Kernel(_get_rel_pos, lambda node: types_in(node, _F16, 0)),
    Op.ADD_REL_POS: Kernel(_add_rel_pos, lambda node: types_in(node, _F32, 0, 1, 2)),
}
