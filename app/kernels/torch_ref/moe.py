"""Mixture of experts: MUL_MAT_ID and ADD_ID choose a matrix or a bias per token and slot.

MUL_MAT_ID: experts [k, n, n_expert], rows [k, b1, t], ids I32 [n_used, t] → F32 [n, n_used, t].
Slot s of token t uses row s % b1 and expert ids[s, t]. Each expert is a weight of its own, so only
those that are used are decoded. ADD_ID adds row ids[s, t] of a bias [n, n_expert] to a
[n, n_used, t].
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from app.errors import GraphError
from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref import dequant
from app.kernels.torch_ref.context import (
    DTYPES,
    READABLE,
    Context,
    as_float,
    too_many_planes,
    types_in,
)

_F32 = frozenset({GGMLType.F32})


def _expert(experts: Tensor, index: int) -> Tensor:
    """Return the matrix [k, n] of one expert."""
    offset = experts.offset + index * experts.nb[2]
    return replace(experts, ne=(*experts.ne[:2], 1, 1), offset=offset)


def _matrix(ctx: Context, expert: Tensor) -> Callable[[], torch.Tensor]:
    """Return a function that gives an expert's matrix F32 (n, k)."""
    if expert.type == GGMLType.F32:
        plain = ctx.view(expert)[0, 0]
        return lambda: plain
    weight = ctx.weight(expert)
    source = ctx.view(expert) if expert.type in DTYPES else ctx.blocks(expert)

    def decoded() -> torch.Tensor:
        held = None if weight is None else weight.value()
        if held is not None:
            return held[0, 0]
        if expert.type in DTYPES:
            return source[0, 0].to(torch.float32)
        return dequant.decoded(expert.type, source[0, 0])

    return decoded


def _chosen(ids: torch.Tensor, count: int, what: str) -> list[int]:
    """Return the distinct indices in `ids`.

    Raises: GraphError for one that is out of range.
    """
    chosen: list[int] = torch.unique(ids).tolist()
    if chosen and (chosen[0] < 0 or chosen[-1] >= count):
        raise GraphError(f"{what}: indices {chosen[0]}…{chosen[-1]}: expected 0…{count - 1}")
    return chosen


def _mul_mat_id(ctx: Context, node: Tensor) -> Steps:
    experts, rows, indices = node.require(0), node.require(1), node.require(2)
    x, steps = as_float(ctx, rows)
    ids, out = ctx.view(indices)[0, 0], ctx.view(node)[0]
    matrices = [_matrix(ctx, _expert(experts, i)) for i in range(experts.ne[2])]
    per_token, what = rows.ne[1], f"MUL_MAT_ID '{node.name}'"

    def step() -> None:
        for index in _chosen(ids, len(matrices), what):
            token, slot = torch.nonzero(ids == index, as_tuple=True)
            out[token, slot] = x[0, token, slot % per_token] @ matrices[index]().t()

    return [*steps, step]


def _add_id(ctx: Context, node: Tensor) -> Steps:
    a, bias = ctx.view(node.require(0)), ctx.view(node.require(1))[0, 0]
    ids, result = ctx.view(node.require(2))[0, 0], ctx.view(node)
    what = f"ADD_ID '{node.name}'"

    def step() -> None:
        _chosen(ids, bias.shape[0], what)
        result.copy_(a + bias[ids.to(torch.int64)])

    return [step]


def _mul_mat_id_supported(node: Tensor) -> str | None:
    if node.require(0).type not in READABLE:
        return f"experts of type {node.require(0).type.name} cannot be decoded"
    if node.require(2).type != GGMLType.I32:
        return f"indices of type {node.require(2).type.name}, expected I32"
    return too_many_planes(node.require(0)) or types_in(node, _F32, 1)


def _add_id_supported(node: Tensor) -> str | None:
    if node.require(2).type != GGMLType.I32:
        return f"indices of type {node.require(2).type.name}, expected I32"
    return types_in(node, _F32, 0, 1)


KERNELS: dict[Op, Kernel[Context]] = {
    Op.MUL_MAT_ID: Kernel(_mul_mat_id, _mul_mat_id_supported),
    Op.ADD_ID: Kernel(_add_id, _add_id_supported),
}
