"""ROPE: rotary position embedding, modes NORM (0) and NEOX (2), with frequency factors and YaRN.

The angles depend on the positions and the parameters only, so the nodes of one run that share them
share one table of cosines and sines. The angles are computed in float64 where the device has it:
positions times frequencies lose too many bits in float32 on long contexts. The formulas are those
of ggml_rope_yarn_corr_dims and rope_yarn in ggml.
"""

import math
from functools import partial

import torch

from app.ggml.op_params import RopeParams
from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import Context, types_in

NORM, NEOX = 0, 2
_TYPES = frozenset({GGMLType.F32, GGMLType.F16})


def frequencies(rope: RopeParams) -> tuple[list[float], float]:
    """Return the angle per position of each pair [n_dims / 2], and the factor on the result."""
    half = rope.n_dims // 2
    base = [rope.freq_base ** (-2.0 * i / rope.n_dims) for i in range(half)]
    if rope.ext_factor == 0.0:
        return [f * rope.freq_scale for f in base], rope.attn_factor
    low, high = _correction_range(rope)
    span = max(0.001, high - low)
    mixes = [(1.0 - min(1.0, max(0.0, (i - low) / span))) * rope.ext_factor for i in range(half)]
    scaled = [f * (rope.freq_scale * (1.0 - m) + m) for f, m in zip(base, mixes, strict=True)]
    return scaled, rope.attn_factor * (1.0 + 0.1 * math.log(1.0 / rope.freq_scale))


def _correction_range(rope: RopeParams) -> tuple[float, float]:
    """Return the pairs between which YaRN passes from extrapolation to interpolation."""

    def pair(rotations: float) -> float:
        turns = rope.n_ctx_orig / (rotations * 2.0 * math.pi)
        return rope.n_dims * math.log(turns) / (2.0 * math.log(rope.freq_base))

    low = max(0.0, math.floor(pair(rope.beta_fast)))
    return low, min(rope.n_dims - 1.0, math.ceil(pair(rope.beta_slow)))


def _table(
    ctx: Context, rope: RopeParams, positions: Tensor, factors: Tensor | None
) -> tuple[tuple[torch.Tensor, torch.Tensor], Steps]:
    """Make cosines and sines F32 (tokens, 1, n_dims / 2)."""
    wide = torch.float32 if ctx.device.type == "mps" else torch.float64
    values, magnitude = frequencies(rope)
    frequency = ctx.constant(values, wide)
    tokens, half = positions.ne[0], rope.n_dims // 2
    where = ctx.kept((tokens, 1, 1), wide)
    angle = ctx.kept((tokens, 1, half), wide)
    cos, sin = ctx.kept((tokens, 1, half)), ctx.kept((tokens, 1, half))
    source = ctx.view(positions).view(tokens, 1, 1)
    steps: Steps = [
        partial(where.copy_, source),
        partial(torch.mul, where, frequency, out=angle),
    ]
    if factors is not None:
        steps.append(partial(angle.div_, ctx.view(factors)[0, 0, 0, :half]))
    steps += [partial(torch.cos, angle, out=cos), partial(torch.sin, angle, out=sin)]
    if magnitude != 1.0:
        steps += [partial(cos.mul_, magnitude), partial(sin.mul_, magnitude)]
    return (cos, sin), steps


def _rope(ctx: Context, node: Tensor) -> Steps:
    rope = RopeParams.unpack(node.params)
    source, positions, factors = node.require(0), node.require(1), node.optional(2)
    reads = [positions] if factors is None else [positions, factors]
    key = (Op.ROPE, node.params.raw, *((id(t.buffer), t.offset, t.ne, t.nb) for t in reads))
    make = partial(_table, ctx, rope, positions, factors)
    cos, sin = ctx.once(key, reads, make)
    x, result = ctx.view(source), ctx.view(node)
    steps: Steps = []
    if x.dtype != torch.float32:
        wide = ctx.scratch(x.shape)
        steps.append(partial(wide.copy_, x))
        x = wide
    steps += _rotate(ctx, rope, x, result, cos, sin)
    for start, end in ((0, rope.n_offs), (rope.n_offs + rope.n_dims, source.ne[0])):
        if end > start and result.data_ptr() != x.data_ptr():
            steps.append(partial(result[..., start:end].copy_, x[..., start:end]))
    return steps


def _pairs(rope: RopeParams, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two halves of each pair: neighbours (NORM) or half a row apart (NEOX)."""
    part = x[..., rope.n_offs : rope.n_offs + rope.n_dims]
    if rope.mode == NORM:
        return part[..., 0::2], part[..., 1::2]
    return part[..., : rope.n_dims // 2], part[..., rope.n_dims // 2 :]


def _rotate(
    ctx: Context,
    rope: RopeParams,
    x: torch.Tensor,
    result: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> Steps:
    """Turn each pair; both products of the first half come before anything is written."""
    first, second = _pairs(rope, x)
    to_first, to_second = _pairs(rope, result)
    kept, crossed = ctx.scratch(first.shape), ctx.scratch(first.shape)
    return [
        partial(torch.mul, first, cos, out=kept),
        partial(torch.mul, first, sin, out=crossed),
        partial(torch.addcmul, kept, second, sin, value=-1, out=to_first),
        partial(torch.addcmul, crossed, second, cos, out=to_second),
    ]


def _supported(node: Tensor) -> str | None:
    rope = RopeParams.unpack(node.params)
    if rope.mode not in (NORM, NEOX):
        return f"mode {rope.mode}, expected {NORM} or {NEOX}"
    if rope.ext_factor != 0.0 and not (
        rope.freq_scale > 0 and rope.freq_base > 1 and rope.n_ctx_orig > 0
    ):
        return (
            f"YaRN with freq_scale {rope.freq_scale}, freq_base {rope.freq_base} and n_ctx_orig "
            f"{rope.n_ctx_orig}: expected positive values and a base above 1"
        )
    if rope.ext_factor != 0.0 and not (rope.beta_fast > 0 and rope.beta_slow > 0):
        return f"YaRN with betas {rope.beta_fast}, {rope.beta_slow}: expected positive values"
    if not rope.freq_base > 0:
        return f"freq_base {rope.freq_base}, expected a positive value"
    return types_in(node, _TYPES, 0)


KERNELS: dict[Op, Kernel[Context]] = {Op.ROPE: Kernel(_rope, _supported)}
