"""FLASH_ATTN_EXT: softmax(scale * Q K + slope * mask) V with grouped heads, in float32.

Q [d, n, h, s], K [d, n_kv, h_kv, s], V [dv, n_kv, h_kv, s], result [dv, h, n, s]. The h / h_kv
query heads of one K head become rows of one product. Query rows are taken in tiles, so that the
logits stay small. A row whose keys are all masked gives zeros, as in ggml.
"""

from dataclasses import dataclass
from functools import partial

import torch

from app.ggml.op_params import AttentionParams
from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import (
    READABLE,
    Context,
    as_float,
    reshaped,
    too_many_planes,
)
from app.kernels.torch_ref.softmax import MaskUse, mask_of, sinks_supported

_TILE_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class _Sizes:
    """n_seq, n_head, n_head_kv, n_rows, n_kv, head size of K and of V."""

    seqs: int
    heads: int
    kv_heads: int
    rows: int
    n_kv: int
    dk: int
    dv: int

    @property
    def group(self) -> int:
        """Query heads per K head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class _Operands:
    """F32 views: q (s, h, n, dk), k (s, h_kv, n_kv, dk), v (s, h_kv, n_kv, dv), mask (1 or s, 1 or
    h, n, n_kv), keep (1 or s, 1 or h, n, 1), which is 0 for rows without any key and else 1, sinks
    (h), out (s, n, h, dv).
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    keep: torch.Tensor | None
    sinks: torch.Tensor | None
    out: torch.Tensor


def _flash_attn(ctx: Context, node: Tensor) -> Steps:
    q, k, v, mask, sinks = (node.optional(i) for i in range(5))
    assert q is not None and k is not None and v is not None
    sizes = _Sizes(q.ne[3], q.ne[2], k.ne[2], q.ne[1], k.ne[1], k.ne[0], v.ne[0])
    if sizes.n_kv == 0:
        return [partial(ctx.view(node).zero_)]
    params = AttentionParams.unpack(node.params)
    wide_k, steps = as_float(ctx, k)
    wide_v, more = as_float(ctx, v)
    steps = [*steps, *more]
    allowed, keep = _mask(ctx, mask, sizes, params.max_bias)
    sink = None if sinks is None else ctx.view(sinks)[0, 0, 0, : sizes.heads]
    whole = _Operands(ctx.view(q), wide_k, wide_v, allowed, keep, sink, ctx.view(node))
    tile = max(1, _TILE_ELEMENTS // (sizes.heads * sizes.n_kv))
    for i in range(sizes.seqs):
        for start in range(0, sizes.rows, tile):
            part = _part(whole, i, slice(start, min(start + tile, sizes.rows)))
            steps += _tile(ctx, part, sizes, params)
    return steps


def _mask(
    ctx: Context, mask: Tensor | None, sizes: _Sizes, max_bias: float
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the mask, free of rows without any key, and 1 or 0 per row to multiply with."""
    if mask is None:
        return None, None
    use = MaskUse(sizes.rows, sizes.heads, sizes.seqs, max_bias)
    plain = mask_of(ctx, mask, use)

    def make() -> tuple[tuple[torch.Tensor, torch.Tensor], Steps]:
        finite = ctx.kept(plain.shape)
        shape = (*plain.shape[:-1], 1)
        best, keep = ctx.kept(shape), ctx.kept(shape)
        empty = ctx.kept(shape, torch.bool)
        steps: Steps = [
            partial(torch.amax, plain, -1, keepdim=True, out=best),
            partial(torch.eq, best, float("-inf"), out=empty),
            partial(torch.logical_not, empty, out=keep),
            partial(finite.copy_, plain),
            partial(finite.masked_fill_, empty, 0.0),
        ]
        return (finite, keep), steps

    key = (Op.FLASH_ATTN_EXT, id(mask.buffer), mask.offset, mask.ne, mask.nb, use)
    return ctx.once(key, [mask], make)


def _part(whole: _Operands, seq: int, rows: slice) -> _Operands:
    """Take some query rows of one sequence, which is dimension 0 of size 1 in the result."""

    def cut(x: torch.Tensor | None) -> torch.Tensor | None:
        return None if x is None else x[min(seq, x.shape[0] - 1)][None, :, rows]

    one = slice(seq, seq + 1)
    return _Operands(
        whole.q[one, :, rows],
        whole.k[one],
        whole.v[one],
        cut(whole.mask),
        cut(whole.keep),
        whole.sinks,
        whole.out[one, rows],
    )


def _tile(ctx: Context, part: _Operands, sizes: _Sizes, params: AttentionParams) -> Steps:
    n = part.q.shape[2]
    group, kv_heads = sizes.group, sizes.kv_heads
    q, steps = reshaped(ctx, part.q, (kv_heads, group * n, sizes.dk))
    columns = sizes.n_kv if part.sinks is None else sizes.n_kv + 1
    weights = ctx.scratch((kv_heads, group * n, columns))
    logits = weights[..., : sizes.n_kv]
    if part.sinks is not None:
        last = weights.view(kv_heads, group, n, columns)[..., -1]
        steps.append(partial(last.copy_, part.sinks.view(kv_heads, group, 1)))
    steps += _logits(part, q, logits, (kv_heads, group, n, sizes.n_kv), params)
    steps.append(partial(torch.softmax, weights, -1, out=weights))
    mixed = ctx.scratch((kv_heads, group * n, sizes.dv))
    steps.append(partial(torch.bmm, logits, part.v[0], out=mixed))
    by_row = mixed.view(sizes.heads, n, sizes.dv).transpose(0, 1)
    if part.keep is None:
        return [*steps, partial(part.out[0].copy_, by_row)]
    return [*steps, partial(torch.mul, by_row, part.keep[0].transpose(0, 1), out=part.out[0])]


def _logits(
    part: _Operands,
    q: torch.Tensor,
    logits: torch.Tensor,
    shape: tuple[int, int, int, int],
    params: AttentionParams,
) -> Steps:
    """Write scale * Q K (soft-capped) plus the mask into `logits` (h_kv, g * n, n_kv)."""
    k = part.k[0].transpose(1, 2)
    steps: Steps = [partial(torch.bmm, q, k, out=logits)]
    scale = params.scale
    if params.logit_softcap != 0.0:
        steps += [
            partial(logits.mul_, scale / params.logit_softcap),
            partial(logits.tanh_),
        ]
        scale = params.logit_softcap
    if part.mask is None:
        return [*steps, partial(logits.mul_, scale)]
    by_head = logits.view(shape) if logits.is_contiguous() else logits.unflatten(1, shape[1:3])
    mask = part.mask[0]
    grouped = mask.view(*((1, 1) if mask.shape[0] == 1 else shape[:2]), *mask.shape[1:])
    return [*steps, partial(torch.add, grouped, by_head, alpha=scale, out=by_head)]


def _supported(node: Tensor) -> str | None:
    for index in (1, 2):
        source = node.require(index)
        if source.type not in READABLE:
            return f"type {source.type.name} of source {index} cannot be decoded"
    if node.require(0).type != GGMLType.F32:
        return f"Q of type {node.require(0).type.name}, expected F32"
    return too_many_planes(node) or sinks_supported(node.optional(4), node.require(0).ne[2])


KERNELS: dict[Op, Kernel[Context]] = {Op.FLASH_ATTN_EXT: Kernel(_flash_attn, _supported)}
