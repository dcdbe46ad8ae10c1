"""DUP, CPY, CONT, REPEAT and CONCAT: move elements, change their type or layout.

Source and result of CPY may have different shapes with the same number of elements; then they
follow one another in ggml order. Quantised tensors of one type are moved block by block.
"""

from functools import partial

import torch

from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import TRAITS
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref import dequant, quantize
from app.kernels.torch_ref.context import (
    DTYPES,
    FLOATS,
    Context,
    repeat_views,
    reshaped,
    types_in,
)

_MOVABLE = frozenset(DTYPES)


def _copy(ctx: Context, node: Tensor) -> Steps:
    source = node.require(0)
    if source.type in DTYPES and node.type in DTYPES:
        return _to(ctx, ctx.view(source), ctx.view(node))
    if source.type == node.type:
        return _to(ctx, ctx.blocks(source), ctx.blocks(node))
    if node.type in DTYPES:
        return _decode(ctx, source, ctx.view(node))
    return _encode(ctx, source, node)


def _to(ctx: Context, view: torch.Tensor, result: torch.Tensor) -> Steps:
    steps: Steps = []
    if view.shape != result.shape:
        view, steps = reshaped(ctx, view, (-1,))
        result, after = _flat(ctx, result)
        return [*steps, partial(result.copy_, view), *after]
    return [partial(result.copy_, view)]


def _flat(ctx: Context, result: torch.Tensor) -> tuple[torch.Tensor, Steps]:
    try:
        return result.view(-1), []
    except RuntimeError:
        room = ctx.scratch(result.shape, result.dtype)
        return room.view(-1), [partial(result.copy_, room)]


def _decode(ctx: Context, source: Tensor, result: torch.Tensor) -> Steps:
    blocks = ctx.blocks(source)
    if result.dtype == torch.float32 and result.shape == tuple(source.ne[::-1]):
        return [partial(dequant.into, source.type, blocks, result)]
    wide = ctx.scratch(source.ne[::-1])
    return [partial(dequant.into, source.type, blocks, wide), *_to(ctx, wide, result)]


def _encode(ctx: Context, source: Tensor, node: Tensor) -> Steps:
    size = TRAITS[node.type].block_size
    wide = ctx.scratch(source.ne[::-1])
    view, result = ctx.view(source), ctx.blocks(node)
    encode = quantize.ENCODERS[node.type]

    def step() -> None:
        wide.copy_(view)
        result.copy_(encode(wide.view(-1, size)).view(result.shape))

    return [step]


def _repeat(ctx: Context, node: Tensor) -> Steps:
    result = ctx.view(node)
    small, shape = repeat_views(ctx.view(node.require(0)), result)
    return [partial(result.view(shape).copy_, small)]


def _concat(ctx: Context, node: Tensor) -> Steps:
    """Quantised rows are joined block by block."""
    look = ctx.view if node.type in DTYPES else ctx.blocks
    dim = 3 - node.params.i32(0)
    result = look(node)
    steps: Steps = []
    start = 0
    for index in (0, 1):
        part = look(node.require(index))
        place = result.narrow(dim, start, part.shape[dim])
        start += part.shape[dim]
        steps.append(partial(place.copy_, part))
    return steps


def _copy_supported(node: Tensor) -> str | None:
    source = node.require(0)
    if source.n_elements != node.n_elements:
        return f"{source.n_elements} elements into {node.n_elements}, expected as many"
    if source.type == node.type:
        return None
    if source.type in _MOVABLE and node.type in _MOVABLE:
        return None
    if source.type in dequant.TYPES and node.type in FLOATS:
        return None
    if source.type in FLOATS and node.type in quantize.ENCODERS:
        return None
    return f"conversion of {source.type.name} to {node.type.name}"


def _repeat_supported(node: Tensor) -> str | None:
    if node.type != node.require(0).type:
        return f"result {node.type.name} of {node.require(0).type.name}, expected the same type"
    return types_in(node, _MOVABLE, 0)


def _concat_supported(node: Tensor) -> str | None:
    if not 0 <= node.params.i32(0) < 4:
        return f"dimension {node.params.i32(0)}, expected 0…3"
    if not node.type == node.require(0).type == node.require(1).type:
        return "sources and result of different types"
    return None


KERNELS: dict[Op, Kernel[Context]] = {
    Op.DUP: Kernel(_copy, _copy_supported),
    Op.CPY: Kernel(_copy, _copy_supported),
    Op.CONT: Kernel(_copy, _copy_supported),
    Op.REPEAT: Kernel(_repeat, _repeat_supported),
    Op.CONCAT: Kernel(_concat, _concat_supported),
}
