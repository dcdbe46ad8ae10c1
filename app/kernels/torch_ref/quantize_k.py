"""float32 → super-blocks of 256 elements: Q2_K … Q6_K and IQ4_XS, as ggml's reference quantisers do
it.

Part of `quantize.ENCODERS`: F32 (n, 256) → bytes (n, type_size). Each sub-block of 16 or 32
elements is fitted by least squares over some trial scales; the scales then become small integers
themselves.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from app.ggml.types import GGMLType
from app.kernels.torch_ref.bits import (
    half_bytes,
    inverse,
    largest,
    packed,
    quotient,
    sum_in_order,
)
from app.kernels.torch_ref.dequant_k import IQ4_VALUES

_EMPTY = 1e-15


class _Fit(NamedTuple):
    """How a type with minima fits a sub-block: its highest number, first trial, distance and number
    of trials, and whether absolute errors count instead of squares.
    """

    top: int
    first: float
    delta: float
    steps: int
    absolute: bool


def _fit_with_minimum(
    x: torch.Tensor, weight: torch.Tensor, fit: _Fit
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and minimum (…, 1) so that scale * number - minimum is near x (…, m)."""
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True)
    sum_w, sum_x, flat = sum_in_order(weight), sum_in_order(weight * x), high == low

    def numbers(scale: torch.Tensor) -> torch.Tensor:
        return torch.round(scale * (x - low)).clamp_(0, fit.top)

    def error(scale: torch.Tensor, minimum: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        difference = scale * number + minimum - x
        return sum_in_order(weight * (difference.abs() if fit.absolute else difference.square()))

    per_unit = quotient(fit.top, high - low)
    best_scale = 1.0 / per_unit
    best = error(best_scale, low, numbers(per_unit))
    for step in torch.arange(fit.steps + 1, device=x.device):
        # Trials go on from the best minimum so far.
        number = numbers((fit.first + fit.delta * step + fit.top) / (high - low))
        sum_l, sum_l2 = sum_in_order(weight * number), sum_in_order(weight * number * number)
        sum_xl = sum_in_order(weight * number * x)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        scale = torch.where(minimum > 0, sum_xl / sum_l2, scale)
        minimum = minimum.clamp(max=0)
        missed = error(scale, minimum, number)
        better = (determinant > 0) & (missed < best)
        best = torch.where(better, missed, best)
        best_scale = torch.where(better, scale, best_scale)
        low = torch.where(better, minimum, low)
    return torch.where(flat, 0.0, best_scale), -torch.where(flat, high, low)


def _levels(values: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values of 0 or more (n, m) → the bytes of their common scale, integers 0…top, and what those
    stand for.
    """
    common = values.amax(1, keepdim=True).clamp(min=0)
    per_unit = torch.where(common == 0, 0.0, quotient(top, common))
    numbers = torch.round(per_unit * values).clamp_(0, top)
    scale = common / top
    return half_bytes(scale), numbers.to(torch.uint8), scale.half().float() * numbers


def _numbers(x: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor, top: int) -> torch.Tensor:
    """Sub-blocks (n, m, k) → their numbers U8 (n, 256)."""
    wanted = (x + minima.unsqueeze(2)) / scales.unsqueeze(2)
    wanted = torch.where(scales.unsqueeze(2) == 0, 0.0, wanted)
    return torch.round(wanted).clamp_(0, top).to(torch.uint8).flatten(1)


def _q2_k(x: torch.Tensor) -> torch.Tensor:
    parts = x.unflatten(1, (16, 16))
    scales, minima = _fit_with_minimum(parts, parts.abs(), _Fit(3, -0.5, 0.1, 15, True))
    d, scale, used = _levels(scales[..., 0], 15)
    d_min, minimum, used_min = _levels(minima[..., 0], 15)
    numbers = _numbers(parts, used, used_min, 3)
    return torch.cat((scale | (minimum << 4), packed(numbers, 2, 32), d, d_min), 1)


def _four_or_five(x: torch.Tensor, fit: _Fit) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first 16 bytes of a Q4_K or Q5_K block and its numbers."""
    parts = x.unflatten(1, (8, 32))
    # torch's root of many F32 is not always the nearest F32.
    root = (sum_in_order(parts.square()) / 32).double().sqrt().float()
    weight = root + parts.abs()
    scales, minima = _fit_with_minimum(parts, weight, fit)
    d, scale, used = _levels(scales[..., 0], 63)
    d_min, minimum, used_min = _levels(minima[..., 0], 63)
    first = scale[:, :4] | ((scale[:, 4:] >> 4) << 6)
    second = minimum[:, :4] | ((minimum[:, 4:] >> 4) << 6)
    third = (scale[:, 4:] & 15) | ((minimum[:, 4:] & 15) << 4)
    head = torch.cat((d, d_min, first, second, third), 1)
    return head, _numbers(parts, used, used_min, fit.top)


def _q4_k(x: torch.Tensor) -> torch.Tensor:
    head, numbers = _four_or_five(x, _Fit(15, -1.0, 0.1, 20, False))
    return torch.cat((head, packed(numbers, 4, 32)), 1)


def _q5_k(x: torch.Tensor) -> torch.Tensor:
    head, numbers = _four_or_five(x, _Fit(31, -0.5, 0.1, 15, False))
    return torch.cat((head, packed(numbers >> 4, 1, 32), packed(numbers, 4, 32)), 1)


def _fit_three_bits(x: torch.Tensor) -> torch.Tensor:
    """Return the scale (…, 1) of numbers -4…3, which one after another go where they fit better."""
    weight = x.square()
    number = torch.round(-4.0 * inverse(largest(x)) * x).clamp_(-4, 3)
    top, bottom = sum_in_order(weight * x * number), sum_in_order(weight * number * number)
    for i in [*range(x.shape[-1])] * 5:
        w, v, old = weight[..., i : i + 1], x[..., i : i + 1], number[..., i : i + 1]
        top_without, bottom_without = top - w * v * old, bottom - w * old * old
        new = torch.round(v * bottom_without / top_without).clamp_(-4, 3)
        new_top, new_bottom = top_without + w * v * new, bottom_without + w * new * new
        better = (top_without > 0) & (new != old) & (new_bottom > 0)
        better &= new_top * new_top * bottom > top * top * new_bottom
        number[..., i : i + 1] = torch.where(better, new, old)
        top, bottom = torch.where(better, new_top, top), torch.where(better, new_bottom, bottom)
    scale = torch.where(bottom > 0, top / bottom, 0.0)
    return torch.where(largest(x).abs() < _EMPTY, 0.0, scale)


def _signed_levels(
    scales: torch.Tensor, depth: int, top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scales (n, m) → the bytes of a common one, integers -depth…top, and what those stand for."""
    greatest = largest(scales)
    per_unit = torch.where(greatest == 0, 0.0, quotient(-depth, greatest))
    numbers = torch.round(per_unit * scales).clamp_(-depth, top)
    common = inverse(per_unit)
    return half_bytes(common), numbers, common.half().float() * numbers


def _signed_numbers(x: torch.Tensor, scales: torch.Tensor, depth: int) -> torch.Tensor:
    """Sub-blocks (n, m, k) → their numbers plus `depth`, U8 (n, 256)."""
    wanted = torch.where(scales.unsqueeze(2) == 0, 0.0, x / scales.unsqueeze(2))
    numbers = torch.round(wanted).clamp_(-depth, depth - 1) + depth
    return numbers.to(torch.uint8).flatten(1)


def _q3_k(x: torch.Tensor) -> torch.Tensor:
    parts = x.unflatten(1, (16, 16))
    d, scale, used = _signed_levels(_fit_three_bits(parts)[..., 0], 32, 31)
    numbers = _signed_numbers(parts, used, 4)
    six = (scale + 32).to(torch.uint8)
    scales = torch.cat((packed(six, 4, 8), packed(six >> 4, 2, 4)), 1)
    return torch.cat((packed(numbers >> 2, 1, 32), packed(numbers, 2, 32), scales, d), 1)


def _fit_six_bits(x: torch.Tensor) -> torch.Tensor:
    """Return the best scale (…, 1) of numbers -32…31 over some trials."""
    weight, greatest = x.square(), largest(x)
    scale = best = torch.zeros_like(greatest)
    for step in (0, *range(-9, 0), *range(1, 10)):
        number = torch.round(quotient(-(32 + 0.1 * step), greatest) * x).clamp_(-32, 31)
        top, bottom = sum_in_order(weight * x * number), sum_in_order(weight * number * number)
        better = (bottom > 0) & (top * top > best * bottom)
        fitted = top / bottom
        scale = torch.where(better, fitted, scale)
        best = torch.where(better, fitted * top, best)
    return torch.where(largest(x).abs() < _EMPTY, 0.0, scale)


def _q6_k(x: torch.Tensor) -> torch.Tensor:
    parts = x.unflatten(1, (16, 16))
    d, scale, used = _signed_levels(_fit_six_bits(parts)[..., 0], 128, 127)
    numbers = _signed_numbers(parts, used, 32)
    low = packed(numbers.unflatten(1, (-1, 2, 64)).flatten(1), 4, 64)
    scales = scale.to(torch.int8).view(torch.uint8)
    return torch.cat((low, packed(numbers >> 4, 2, 32), scales, d), 1)


def nearest_iq4(x: torch.Tensor) -> torch.Tensor:
    """Index of the nearest IQ4 value; of two equally near ones the higher."""
    values = torch.tensor(IQ4_VALUES, dtype=torch.float32, device=x.device)
    return torch.bucketize(x, (values[1:] + values[:-1]) / 2, right=True).to(torch.uint8)


def _fit_iq4(x: torch.Tensor) -> torch.Tensor:
    """Return the best scale (…, 1) of IQ4 values over some trials."""
    values = torch.tensor(IQ4_VALUES, dtype=torch.float32, device=x.device)
    weight, greatest = x.square(), largest(x)
    scale = best = torch.zeros_like(greatest)
    trials = [quotient(IQ4_VALUES[0] + step, greatest) for step in range(-7, 8)]
    for per_unit in (inverse(greatest / -IQ4_VALUES[0]), *trials):
        chosen = values[nearest_iq4(per_unit * x).to(torch.int64)]
        top, bottom = sum_in_order(weight * chosen * x), sum_in_order(weight * chosen * chosen)
        better = (bottom > 0) & (top * top > best * bottom)
        fitted = top / bottom
        scale = torch.where(better, fitted, scale)
        best = torch.where(better, fitted * top, best)
    return torch.where(largest(x).abs() < _EMPTY, 0.0, scale)


def _iq4_xs(x: torch.Tensor) -> torch.Tensor:
    parts = x.unflatten(1, (8, 32))
    scales = _fit_iq4(parts)[..., 0]
    common = largest(scales) / -32.0
    scale = torch.round(inverse(common) * scales).clamp_(-32, 31)
    numbers = nearest_iq4(inverse(common * scale).unsqueeze(2) * parts).flatten(1)
    six = (scale + 32).to(torch.uint8)
    head = (half_bytes(common), packed(six >> 4, 2, 1), packed(six, 4, 1))
    return torch.cat((*head, packed(numbers, 4, 16)), 1)


ENCODERS: dict[GGMLType, Callable[[torch.Tensor], torch.Tensor]] = {
    GGMLType.Q2_K: _q2_k,
    GGMLType.Q3_K: _q3_k,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
    GGMLType.IQ4_XS: _iq4_xs,
}
