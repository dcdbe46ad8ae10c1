"""SOFT_MAX over rows of x * scale + slope * mask, with ALiBi slopes and attention sinks.

The mask repeats over dimensions 2 and 3; a sink is one more logit per head that takes part in the
sum and is then dropped. The result may be the memory of the source.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch

from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import Context, types_in

_F32 = frozenset({GGMLType.F32})
_MASK = frozenset({GGMLType.F32, GGMLType.F16})


def alibi_slopes(n_head: int, max_bias: float) -> list[float]:
    """Return each head's factor on the mask: powers of one base for the largest power of two of
    heads, and odd powers of its square root for the others.
    """
    if max_bias <= 0.0:
        return [1.0] * n_head
    n_first = 1 << int(math.log2(n_head))
    base = 2.0 ** (-max_bias / n_first)
    root = 2.0 ** (-max_bias / 2.0 / n_first)
    first = [base ** (h + 1) for h in range(n_first)]
    return first + [root ** (2 * h + 1) for h in range(n_head - n_first)]


@dataclass(frozen=True, slots=True)
class MaskUse:
    """How a node uses a mask: its query rows, heads and sequences, and the ALiBi bias."""

    n_rows: int
    n_head: int
    n_seq: int
    max_bias: float


def _widened(ctx: Context, mask: Tensor, use: MaskUse) -> tuple[torch.Tensor, Steps]:
    view = ctx.view(mask)[:, :, : use.n_rows]
    n_seq, n_head = mask.ne[3], mask.ne[2]
    seqs = n_seq if n_seq == 1 else use.n_seq
    heads = n_head if n_head == 1 and use.max_bias <= 0.0 else use.n_head
    wide = ctx.kept((seqs, heads, *view.shape[2:]))
    repeats = wide.view(seqs // n_seq, n_seq, heads // n_head, n_head, *view.shape[2:])
    steps: Steps = [partial(repeats.copy_, view.unsqueeze(1))]
    if use.max_bias > 0.0:
        slopes = ctx.constant(alibi_slopes(use.n_head, use.max_bias), torch.float32)
        steps.append(partial(wide.mul_, slopes.view(-1, 1, 1)))
    return wide, steps


def mask_of(ctx: Context, mask: Tensor, use: MaskUse) -> torch.Tensor:
    """Return slope * mask as F32 (1 or n_seq, 1 or n_head, n_rows, n), shared within a run."""
    key = (Op.SOFT_MAX, id(mask.buffer), mask.offset, mask.type, mask.ne, mask.nb, use)
    return ctx.once(key, [mask], lambda: _widened(ctx, mask, use))


def softmax_rows(x: torch.Tensor, out: torch.Tensor) -> Steps:
    """Softmax over the last dimension."""
    return [partial(torch.softmax, x, -1, out=out)]


def with_sinks(
    ctx: Context, sinks: Tensor, logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Steps]:
    """Return room (s, h, rows, n + 1) for logits and a sink each, the part (s, h, rows, n) for the
    logits, and the step that writes the sinks.
    """
    n_seq, n_head, n_rows, n = logits.shape
    room = ctx.scratch((n_seq, n_head, n_rows, n + 1))
    sink = ctx.view(sinks)[0, 0, 0, :n_head].view(n_head, 1)
    return room, room[..., :n], [partial(room[..., n].copy_, sink)]


def _soft_max(ctx: Context, node: Tensor) -> Steps:
    scale, max_bias = node.params.f32(0), node.params.f32(1)
    source, mask, sinks = node.require(0), node.optional(1), node.optional(2)
    x, result = ctx.view(source), ctx.view(node)
    logits = result if result.is_contiguous() else ctx.scratch(x.shape)
    weights = logits
    steps: Steps = []
    if sinks is not None:
        weights, logits, steps = with_sinks(ctx, sinks, x)
    if mask is None:
        steps.append(partial(torch.mul, x, scale, out=logits))
    else:
        use = MaskUse(source.ne[1], source.ne[2], source.ne[3], max_bias)
        wide = mask_of(ctx, mask, use)
        steps.append(partial(torch.add, wide, x, alpha=scale, out=logits))
    steps += softmax_rows(weights, weights)
    if logits is not result:
        steps.append(partial(result.copy_, logits))
    return steps


def _supported(node: Tensor) -> str | None:
    mask, sinks = node.optional(1), node.optional(2)
    if mask is not None and mask.type not in _MASK:
        return f"mask of type {mask.type.name}, expected F16 or F32"
    return sinks_supported(sinks, node.require(0).ne[2]) or types_in(node, _F32, 0)


def sinks_supported(sinks: Tensor | None, n_head: int) -> str | None:
    """Return why `sinks` are not one F32 per head, or None."""
    if sinks is None or (sinks.type == GGMLType.F32 and sinks.ne[0] >= n_head):
        return None
    return f"sinks {sinks.type.name} {list(sinks.ne)}, expected F32 [{n_head}]"


KERNELS: dict[Op, Kernel[Context]] = {Op.SOFT_MAX: Kernel(_soft_max, _supported)}
