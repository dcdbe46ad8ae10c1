"""Blocks of one-bit, ternary and two-bit numbers, and of NVFP4's small floats → float32.

Called by `dequant` with bytes (n, type_size); each function returns F32 (n, block_size).
"""

import torch

from app.kernels.torch_ref.bits import codebook, fields, half, nibbles

FP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_POWERS_OF_THREE = (1, 3, 9, 27, 81)


def q1_0(blocks: torch.Tensor) -> torch.Tensor:
    """Scale f16, 128 bits: the scale or its opposite."""
    bits = fields(blocks[:, 2:], 1, 1).to(torch.float32)
    return bits.mul_(2).sub_(1).mul_(half(blocks, 0))


def q2_0(blocks: torch.Tensor) -> torch.Tensor:
    """Scale f16, 64 numbers of two bits that stand for -1…2."""
    return fields(blocks[:, 2:], 2, 1).to(torch.float32).sub_(1).mul_(half(blocks, 0))


def tq2_0(blocks: torch.Tensor) -> torch.Tensor:
    """64 bytes of 2-bit numbers that stand for -1…2, scale f16."""
    return fields(blocks[:, :64], 2, 32).to(torch.float32).sub_(1).mul_(half(blocks, 64))


def tq1_0(blocks: torch.Tensor) -> torch.Tensor:
    """48 bytes of five ternary digits, four bytes of four, scale f16. A byte times a power of three
    has the next digit on top.
    """
    parts = [
        _digits(blocks[:, :32], 5),
        _digits(blocks[:, 32:48], 5),
        _digits(blocks[:, 48:52], 4),
    ]
    return torch.cat(parts, 1).to(torch.float32).sub_(1).mul_(half(blocks, 52))


def _digits(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Bytes (n, m) → first digits, second digits and so on (n, count * m)."""
    powers = torch.tensor(_POWERS_OF_THREE[:count], dtype=torch.int32, device=packed.device)
    turned: torch.Tensor = (packed.to(torch.int32).unsqueeze(1) * powers.view(-1, 1)) & 255
    digits: torch.Tensor = (turned * 3) >> 8
    return digits.flatten(1)


def nvfp4(blocks: torch.Tensor) -> torch.Tensor:
    """Four scales of a 4-bit exponent and 3-bit mantissa, 32 bytes of two 4-bit floats; the values
    listed are doubled, so scales are halved.
    """
    numbers = codebook(nibbles(blocks[:, 4:], 8), FP4_VALUES).unflatten(1, (4, 16))
    scales = small_floats(blocks[:, :4]).unsqueeze(2)
    return torch.mul(scales, numbers).flatten(1)


def small_floats(packed: torch.Tensor) -> torch.Tensor:
    """Half the value of unsigned 8-bit floats; 0x7F stands for none and counts as 0."""
    exponent, mantissa = ((packed >> 3) & 15).to(torch.int32), (packed & 7).to(torch.float32)
    normal = torch.ldexp(1.0 + mantissa / 8.0, exponent - 7)
    value: torch.Tensor = torch.where(exponent == 0, mantissa * 2.0**-9, normal)
    return (value * 0.5).masked_fill((packed == 0) | (packed == 0x7F), 0.0)
