"""float32 → blocks of one-bit, ternary, two-bit and small-float numbers, as ggml's reference
quantisers do it.

Part of `quantize.ENCODERS`: F32 (n, block_size) → bytes (n, type_size).
"""

from collections.abc import Callable

import torch

from app.ggml.types import GGMLType
from app.kernels.torch_ref.bits import (
    half_bytes,
    inverse,
    packed,
    round_half_away,
    sum_in_order,
)
from app.kernels.torch_ref.dequant_few import FP4_VALUES, small_floats

_GREATEST_FLOAT, _LARGEST = 0x7E, 448.0


def _q1_0(x: torch.Tensor) -> torch.Tensor:
    scale = sum_in_order(x.abs()) / x.shape[1]
    return torch.cat((half_bytes(scale), packed((x >= 0).to(torch.uint8), 1, 1)), 1)


def _greatest(x: torch.Tensor) -> torch.Tensor:
    return x.abs().amax(1, keepdim=True)


def _q2_0(x: torch.Tensor) -> torch.Tensor:
    scale = _greatest(x)
    numbers = (round_half_away(x * inverse(scale)) + 1).clamp_(0, 3).to(torch.uint8)
    return torch.cat((half_bytes(scale), packed(numbers, 2, 1)), 1)


def _ternary(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bytes of the scale and numbers 0…2 as I32."""
    scale = _greatest(x)
    numbers = (round_half_away(x * inverse(scale)) + 1).clamp_(0, 2).to(torch.int32)
    return half_bytes(scale), numbers


def _tq2_0(x: torch.Tensor) -> torch.Tensor:
    scale, numbers = _ternary(x)
    return torch.cat((packed(numbers.to(torch.uint8), 2, 32), scale), 1)


def _tq1_0(x: torch.Tensor) -> torch.Tensor:
    scale, numbers = _ternary(x)
    parts = [
        _base_three(numbers[:, :160], 5, 32),
        _base_three(numbers[:, 160:240], 5, 16),
        _base_three(numbers[:, 240:], 4, 4),
    ]
    return torch.cat((*parts, scale), 1)


def _base_three(numbers: torch.Tensor, count: int, run: int) -> torch.Tensor:
    """Numbers (n, count * run) → bytes (n, run) of `count` digits, the first one highest of five,
    stretched over the byte.
    """
    value = torch.zeros_like(numbers[:, :run])
    for i in range(5):
        value = value * 3
        if i < count:
            value = value + numbers[:, i * run : (i + 1) * run]
    return ((value * 256 + 242) // 243).to(torch.uint8)


def _fp4(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Index of the listed value that times `scale` is nearest; of equally near ones the first."""
    best = x.abs()
    chosen = torch.zeros_like(x, dtype=torch.uint8)
    for index, value in enumerate(FP4_VALUES[1:], 1):
        error = (value * scale - x).abs()
        chosen = torch.where(error < best, index, chosen)
        best = torch.minimum(best, error)
    return chosen.to(torch.uint8)


def _mxfp4(x: torch.Tensor) -> torch.Tensor:
    greatest = _greatest(x)
    exponent = (torch.floor(torch.log2(greatest)) - 2 + 127).clamp_(0, 255)
    exponent = torch.where(greatest > 0, exponent, 0.0).to(torch.int32)
    scale = torch.ldexp(torch.ones_like(greatest), exponent - 128)
    return torch.cat((exponent.to(torch.uint8), packed(_fp4(x, scale), 4, 16)), 1)


def _nvfp4(x: torch.Tensor) -> torch.Tensor:
    parts = x.unflatten(1, (4, 16))
    scales = _to_small_floats(parts.abs().amax(2) / 6.0)
    numbers = _fp4(parts, small_floats(scales).unsqueeze(2)).flatten(1)
    return torch.cat((scales, packed(numbers, 4, 8)), 1)


def _to_small_floats(x: torch.Tensor) -> torch.Tensor:
    """Numbers of 0 or more → unsigned 8-bit floats, rounded half up in the mantissa."""
    bits = x.clamp(max=_LARGEST).view(torch.int32)
    exponent = ((bits >> 23) & 255) - 127 + 7
    # A mantissa that overflows carries into the exponent.
    normal = (exponent << 3) + ((bits >> 20) & 7) + ((bits >> 19) & 1)
    tiny = (x * 512.0 + 0.5).to(torch.int32).clamp_(max=7)
    result = torch.where(exponent <= 0, tiny, normal.clamp(max=_GREATEST_FLOAT))
    result = torch.where(exponent >= 15, _GREATEST_FLOAT, result)
    return torch.where(x > 0, result, 0).to(torch.uint8)


ENCODERS: dict[GGMLType, Callable[[torch.Tensor], torch.Tensor]] = {
    GGMLType.Q1_0: _q1_0,
    GGMLType.Q2_0: _q2_0,
    GGMLType.TQ1_0: _tq1_0,
    GGMLType.TQ2_0: _tq2_0,
    GGMLType.MXFP4: _mxfp4,
    GGMLType.NVFP4: _nvfp4,
}
