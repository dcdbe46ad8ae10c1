"""GET_ROWS and SET_ROWS: gather rows by index, scatter rows by index, with conversion.

An index out of range raises GraphError and touches no foreign memory: on the CPU torch's own check
does it, elsewhere the step compares first, because a failed check on a GPU ends the process.
"""

from collections.abc import Callable
from functools import partial

import torch

from app.errors import GraphError
from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import TRAITS, GGMLType
from app.kernels.table import Kernel, Step, Steps
from app.kernels.torch_ref import dequant, quantize
from app.kernels.torch_ref.context import (
    DTYPES,
    FLOATS,
    READABLE,
    Context,
    too_many_planes,
)


def _guarded(step: Step, index: torch.Tensor, n_rows: int, what: str) -> Step:
    """Turn a bad index into GraphError."""
    on_cpu = index.device.type == "cpu"

    def fail() -> GraphError:
        low, high = int(index.min()), int(index.max())
        return GraphError(f"{what}: indices {low}…{high}: expected 0…{n_rows - 1}")

    def checked() -> None:
        if not on_cpu and index.numel() and (int(index.min()) < 0 or int(index.max()) >= n_rows):
            raise fail()
        try:
            step()
        except (IndexError, RuntimeError) as error:
            if index.numel() and (int(index.min()) < 0 or int(index.max()) >= n_rows):
                raise fail() from error
            raise

    return checked


def _get_rows(ctx: Context, node: Tensor) -> Steps:
    source, indices = node.require(0), node.require(1)
    index = ctx.view(indices)
    result = ctx.view(node)
    steps: Steps = []
    for i3 in range(source.ne[3]):
        for i2 in range(source.ne[2]):
            step = _gather(ctx, source, index[0, i3, i2], result[i3, i2], (i3, i2))
            what = f"GET_ROWS '{node.name}'"
            steps.append(_guarded(step, index[0, i3, i2], source.ne[1], what))
    return steps


def _gather(
    ctx: Context, source: Tensor, index: torch.Tensor, out: torch.Tensor, at: tuple[int, int]
) -> Step:
    """Write rows `index` (m) of matrix `at` into `out` (m, ne0)."""
    if source.type in DTYPES:
        matrix = ctx.view(source)[at]
        if matrix.dtype == out.dtype and out.is_contiguous():
            return partial(torch.index_select, matrix, 0, index, out=out)
        return lambda: out.copy_(matrix.index_select(0, index))
    blocks = ctx.blocks(source)[at]
    return lambda: dequant.into(source.type, blocks.index_select(0, index), out)


def _set_rows(ctx: Context, node: Tensor) -> Steps:
    rows, indices = node.require(0), node.require(1)
    index, steps = _wide_index(ctx, indices)
    what = f"SET_ROWS '{node.name}'"
    for i3 in range(rows.ne[3]):
        for i2 in range(rows.ne[2]):
            chosen = index[0, i3 % indices.ne[2], i2 % indices.ne[1]]
            source = ctx.view(rows)[i3, i2]
            convert, step = _scatter(ctx, node, source, chosen, (i3, i2))
            steps += [*convert, _guarded(step, chosen, node.ne[1], what)]
    return steps


def _wide_index(ctx: Context, indices: Tensor) -> tuple[torch.Tensor, Steps]:
    """Return indices as I64, which scattering needs."""
    index = ctx.view(indices)
    if indices.type == GGMLType.I64:
        return index, []
    wide = ctx.scratch(index.shape, torch.int64)
    return wide, [partial(wide.copy_, index)]


def _scatter(
    ctx: Context, node: Tensor, rows: torch.Tensor, index: torch.Tensor, at: tuple[int, int]
) -> tuple[Steps, Step]:
    """Convert `rows` (m, ne0) to the node's type and put them at `index` (m) of matrix `at`."""
    if node.type not in DTYPES:
        return _scatter_blocks(ctx, node, rows, index, at)
    matrix = ctx.view(node)[at]
    if matrix.shape[1] == 1:
        matrix, rows = matrix[:, 0], rows[:, 0]
    if rows.dtype == matrix.dtype:
        return [], partial(matrix.index_copy_, 0, index, rows)
    narrow = ctx.scratch(rows.shape, matrix.dtype)
    return [partial(narrow.copy_, rows)], partial(matrix.index_copy_, 0, index, narrow)


def _scatter_blocks(
    ctx: Context, node: Tensor, rows: torch.Tensor, index: torch.Tensor, at: tuple[int, int]
) -> tuple[Steps, Step]:
    traits = TRAITS[node.type]
    blocks = ctx.blocks(node)[at].flatten(1)
    encode: Callable[[torch.Tensor], torch.Tensor] = quantize.ENCODERS[node.type]

    def step() -> None:
        pieces = rows.to(torch.float32).reshape(-1, traits.block_size)
        blocks.index_copy_(0, index, encode(pieces).view(rows.shape[0], blocks.shape[1]))

    return [], step


def _get_rows_supported(node: Tensor) -> str | None:
    source = node.require(0)
    if (reason := too_many_planes(node)) is not None:
        return reason
    if source.type == GGMLType.I32:
        return None if node.type == GGMLType.I32 else f"result {node.type.name}, expected I32"
    if source.type not in READABLE:
        return f"source of type {source.type.name} cannot be decoded"
    return None if node.type == GGMLType.F32 else f"result {node.type.name}, expected F32"


def _set_rows_supported(node: Tensor) -> str | None:
    rows, indices = node.require(0), node.require(1)
    if node.type not in FLOATS and node.type not in quantize.ENCODERS:
        return f"rows of type {node.type.name} cannot be encoded"
    if rows.type not in (GGMLType.F32, GGMLType.F16):
        return f"rows of type {rows.type.name}, expected F32 or F16"
    if indices.type not in (GGMLType.I64, GGMLType.I32):
        return f"indices of type {indices.type.name}, expected I64 or I32"
    return too_many_planes(node)


KERNELS: dict[Op, Kernel[Context]] = {
    Op.GET_ROWS: Kernel(_get_rows, _get_rows_supported),
    Op.SET_ROWS: Kernel(_set_rows, _set_rows_supported),
}
