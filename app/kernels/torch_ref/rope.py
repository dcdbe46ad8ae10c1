"""ROPE: rotary position embedding in every mode, with frequency factors and YaRN; ROPE_BACK turns
back.

The angles depend on the positions and the parameters only, so the nodes of one run that share them
share one table of cosines and sines. The angles are computed in float64 where the device has it:
positions times frequencies lose too many bits in float32 on long contexts. The formulas are those
of ggml_rope_yarn_corr_dims and rope_yarn in ggml.
"""

import math
from functools import partial

import torch

from app.ggml.op_params import RopeParams
from app.ggml.ops import Op, RopeMode
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import Context, types_in

_TYPES = frozenset({GGMLType.F32, GGMLType.F16})
# Each pair has a frequency of its own, made in Python when a node is compiled.
_MAX_PAIRS = 1 << 16


def n_pairs(rope: RopeParams) -> int:
    """Pairs that turn in each row."""
    return rope.n_dims if rope.mode == RopeMode.VISION else rope.n_dims // 2


def streams(rope: RopeParams) -> tuple[list[int], list[int]]:
    """Return for each pair which of a token's four positions turns it, and its frequency number."""
    pairs = range(n_pairs(rope))
    if not rope.mode & RopeMode.MROPE:
        return [0 for _ in pairs], list(pairs)
    total = sum(rope.sections)
    choose = _interleaved if rope.mode == RopeMode.IMROPE else _in_sections
    chosen = [choose(pair % total, rope.sections) for pair in pairs]
    if rope.mode != RopeMode.VISION:
        return chosen, list(pairs)
    starts = [sum(rope.sections[:i]) for i in range(4)]
    since, numbers = [0, 0, 0, 0], []
    for pair, stream in zip(pairs, chosen, strict=True):
        if pair % total in starts:
            since[starts.index(pair % total)] = pair
        numbers.append(pair - since[stream])
    return chosen, numbers


def _in_sections(sector: int, sections: tuple[int, int, int, int]) -> int:
    ends = [sum(sections[: i + 1]) for i in range(3)]
    return sum(sector >= end for end in ends)


def _interleaved(sector: int, sections: tuple[int, int, int, int]) -> int:
    stream = sector % 3
    return stream if sector < 3 * sections[stream] else 3


def frequencies(rope: RopeParams, numbers: list[int]) -> tuple[list[float], float]:
    """Return the angle per position of each pair [n_pairs] by its frequency number, and the factor
    on the result.
    """
    base = [rope.freq_base ** (-2.0 * i / rope.n_dims) for i in numbers]
    if rope.ext_factor == 0.0:
        return [f * rope.freq_scale for f in base], rope.attn_factor
    low, high = _correction_range(rope)
    span = max(0.001, high - low)
    ramps = [1.0 - min(1.0, max(0.0, (i - low) / span)) for i in range(len(base))]
    mixes = [ramp * rope.ext_factor for ramp in ramps]
    scaled = [f * (rope.freq_scale * (1.0 - m) + m) for f, m in zip(base, mixes, strict=True)]
    return scaled, rope.attn_factor * (1.0 + 0.1 * math.log(1.0 / rope.freq_scale))


def _correction_range(rope: RopeParams) -> tuple[float, float]:
    """Return the pairs between which YaRN passes from extrapolation to interpolation."""

    def pair(rotations: float) -> float:
        turns = rope.n_ctx_orig / (rotations * 2.0 * math.pi)
        if turns == 0.0:
            return -math.inf
        return rope.n_dims * math.log(turns) / (2.0 * math.log(rope.freq_base))

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if math.isinf(low):
        return 0.0, low
    return max(0.0, math.floor(low)), min(rope.n_dims - 1.0, math.ceil(high))


def _table(
    ctx: Context, rope: RopeParams, positions: Tensor, factors: Tensor | None
) -> tuple[tuple[torch.Tensor, torch.Tensor], Steps]:
    """Make cosines and sines F32 (tokens, 1, n_pairs)."""
    wide = torch.float32 if ctx.device.type == "mps" else torch.float64
    chosen, numbers = streams(rope)
    values, magnitude = frequencies(rope, numbers)
    frequency = ctx.constant(values, wide)
    per_token, pairs = (4 if rope.mode & RopeMode.MROPE else 1), len(values)
    tokens = positions.ne[0] // per_token
    where = ctx.kept((per_token, tokens), wide)
    angle = ctx.kept((tokens, 1, pairs), wide)
    cos, sin = ctx.kept((tokens, 1, pairs)), ctx.kept((tokens, 1, pairs))
    steps: Steps = [partial(where.copy_, ctx.view(positions).view(per_token, tokens))]
    if per_token == 1:
        steps.append(partial(torch.mul, where.view(tokens, 1, 1), frequency, out=angle))
    else:
        stream = ctx.constant(chosen, torch.int64)
        flat = angle.view(tokens, pairs)
        steps.append(lambda: torch.mul(where[stream].t(), frequency, out=flat))
    if factors is not None:
        steps.append(partial(angle.div_, ctx.view(factors)[0, 0, 0, :pairs]))
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
    direction = -1 if node.op == Op.ROPE_BACK else 1
    steps += _rotate(ctx, rope, x, result, cos, sin, direction)
    for start, end in ((0, rope.n_offs), (rope.n_offs + 2 * n_pairs(rope), source.ne[0])):
        if end > start and result.data_ptr() != x.data_ptr():
            steps.append(partial(result[..., start:end].copy_, x[..., start:end]))
    return steps


def _pairs(rope: RopeParams, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two parts of each pair: neighbours, or half of what turns apart."""
    n = n_pairs(rope)
    part = x[..., rope.n_offs : rope.n_offs + 2 * n]
    if rope.mode == RopeMode.NORM:
        return part[..., 0::2], part[..., 1::2]
    return part[..., :n], part[..., n:]


def _rotate(
    ctx: Context,
    rope: RopeParams,
    x: torch.Tensor,
    result: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    direction: int,
) -> Steps:
    """Turn each pair, backwards for direction -1; both products of the first half come before
    anything is written.
    """
    first, second = _pairs(rope, x)
    to_first, to_second = _pairs(rope, result)
    kept, crossed = ctx.scratch(first.shape), ctx.scratch(first.shape)
    return [
        partial(torch.mul, first, cos, out=kept),
        partial(torch.mul, first, sin, out=crossed),
        partial(torch.addcmul, kept, second, sin, value=-direction, out=to_first),
        partial(_cross, crossed, second, cos, to_second, direction),
    ]


def _cross(
    crossed: torch.Tensor,
    second: torch.Tensor,
    cos: torch.Tensor,
    out: torch.Tensor,
    direction: int,
) -> None:
    if direction < 0:
        crossed.neg_()
    torch.addcmul(crossed, second, cos, out=out)


def _supported(node: Tensor) -> str | None:
    rope = RopeParams.unpack(node.params)
    if rope.mode not in RopeMode._value2member_map_:
        return f"mode {rope.mode}, expected one of {', '.join(m.name for m in RopeMode)}"
    if rope.ext_factor != 0.0 and not (
        rope.freq_scale > 0 and rope.freq_base > 1 and rope.n_ctx_orig >= 0
    ):
        return (
            f"YaRN with freq_scale {rope.freq_scale}, freq_base {rope.freq_base} and n_ctx_orig "
            f"{rope.n_ctx_orig}: expected positive values and a base above 1"
        )
    if rope.ext_factor != 0.0 and not (rope.beta_fast > 0 and rope.beta_slow > 0):
        return f"YaRN with betas {rope.beta_fast}, {rope.beta_slow}: expected positive values"
    if n_pairs(rope) > _MAX_PAIRS:
        return f"{n_pairs(rope)} pairs, expected up to {_MAX_PAIRS}"
    if not rope.freq_base > 0:
        return f"freq_base {rope.freq_base}, expected a positive value"
    return types_in(node, _TYPES, 0)


KERNELS: dict[Op, Kernel[Context]] = {
    Op.ROPE: Kernel(_rope, _supported),
    Op.ROPE_BACK: Kernel(_rope, _supported),
}
