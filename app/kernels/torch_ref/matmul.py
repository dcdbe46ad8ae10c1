"""MUL_MAT: rows of src0 [k, n] times rows of src1 [k, m] → F32 [n, m], in float32; OUT_PROD.

src0 may be of any readable type; one that this graph does not write to is a weight, of which the
device keeps a float32 copy while there is room. Without room it is decoded again in pieces of rows.
src1 [k, m, c2, c3] uses the matrix (i2 / (c2 / b2), i3 / (c3 / b3)) of src0 [k, n, b2, b3], so
the c2 / b2 that share one are folded into its rows.
"""

from functools import partial

import torch

from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Step, Steps
from app.kernels.torch_ref import dequant
from app.kernels.torch_ref.context import (
    DTYPES,
    READABLE,
    Context,
    Weight,
    as_float,
    reshaped,
    target,
    too_many_planes,
)

_PIECE_ELEMENTS = 1 << 20


def _mul_mat(ctx: Context, node: Tensor) -> Steps:
    a, b = node.require(0), node.require(1)
    if a.ne[0] == 0:
        return [partial(ctx.view(node).zero_)]
    x, steps = as_float(ctx, b)
    if a.ne[2] == 1 and a.ne[3] == 1:
        return steps + _matrix(ctx, node, x)
    return steps + _batched(ctx, node, x)


def _matrix(ctx: Context, node: Tensor, x: torch.Tensor) -> Steps:
    """One matrix for all rows."""
    a = node.require(0)
    k, n = a.ne[0], a.ne[1]
    rows, before = reshaped(ctx, x, (-1, k))
    out, after = target(ctx, ctx.view(node), (-1, n))
    weight = None if a.type == GGMLType.F32 else ctx.weight(a)
    if weight is not None:
        return [*before, _product_with_weight(ctx, a, weight, rows, out), *after]
    matrix, steps = as_float(ctx, a)
    product = partial(torch.mm, rows, matrix[0, 0].t(), out=out)
    return [*before, *steps, product, *after]


def _product_with_weight(
    ctx: Context, a: Tensor, weight: Weight, rows: torch.Tensor, out: torch.Tensor
) -> Step:
    value = weight.value
    mm = torch.mm
    in_pieces = _product_in_pieces(ctx, a, rows, out)

    def step() -> None:
        matrix = value()
        if matrix is None:
            in_pieces()
        else:
            mm(rows, matrix[0, 0].t(), out=out)

    return step


def _product_in_pieces(ctx: Context, a: Tensor, rows: torch.Tensor, out: torch.Tensor) -> Step:
    """Decode some rows of the weight, multiply, go on."""
    k, n = a.ne[0], a.ne[1]
    source = ctx.view(a)[0, 0] if a.type in DTYPES else ctx.blocks(a)[0, 0]
    height = max(1, min(n, _PIECE_ELEMENTS // k))
    room = ctx.scratch((height, k))

    def step() -> None:
        for start in range(0, n, height):
            part = source[start : start + height]
            piece = room[: part.shape[0]]
            if a.type in DTYPES:
                piece.copy_(part)
            else:
                dequant.into(a.type, part, piece)
            out[:, start : start + height] = rows @ piece.t()

    return step


def _batched(ctx: Context, node: Tensor, x: torch.Tensor) -> Steps:
    """Several matrices: one product of batches per index of dimension 3."""
    a, b = node.require(0), node.require(1)
    k, n, b2, b3 = a.ne
    m, c2, c3 = b.ne[1:]
    weight = None if a.type == GGMLType.F32 else ctx.weight(a)
    matrices, steps = as_float(ctx, a)
    if weight is not None:
        steps = [_fetch(weight, matrices, steps)]
    out, after = target(ctx, ctx.view(node), (c3, c2, m, n))
    for i3 in range(c3):
        rows, before = reshaped(ctx, x[i3], (b2, c2 // b2 * m, k))
        part, back = target(ctx, out[i3], (b2, c2 // b2 * m, n))
        matrix = matrices[i3 // (c3 // b3)].transpose(1, 2)
        steps += [*before, partial(torch.bmm, rows, matrix, out=part), *back]
    return steps + after


def _fetch(weight: Weight, matrices: torch.Tensor, steps: Steps) -> Step:
    """Fill `matrices` from the kept copy, or by `steps` when there is none."""

    def step() -> None:
        value = weight.value()
        if value is not None:
            matrices.copy_(value)
            return
        for convert in steps:
            convert()

    return step


def _out_prod(ctx: Context, node: Tensor) -> Steps:
    """a [m, k, b2, b3], b [n, k, c2, c3] → [m, n, c2, c3]; planes of a repeat as in a product."""
    a, b = node.require(0), node.require(1)
    left, steps = as_float(ctx, a)
    right, more = as_float(ctx, b)
    result = ctx.view(node)
    _, k, b2, b3 = a.ne
    n, _, c2, c3 = b.ne

    def step() -> None:
        for i3 in range(c3):
            rows = right[i3].transpose(1, 2).reshape(b2, c2 // b2 * n, k)
            product = torch.bmm(rows, left[i3 // (c3 // b3)])
            result[i3].copy_(product.view(result.shape[1:]))

    return [*steps, *more, step]


def _supported(node: Tensor) -> str | None:
    for index in (0, 1):
        source = node.require(index)
        if source.type not in READABLE:
            return f"type {source.type.name} of source {index} cannot be decoded"
    if node.type != GGMLType.F32:
        return f"result {node.type.name}, expected F32"
    return too_many_planes(node)


KERNELS: dict[Op, Kernel[Context]] = {
    Op.MUL_MAT: Kernel(_mul_mat, _supported),
    Op.OUT_PROD: Kernel(_out_prod, _supported),
}
