"""Super-blocks of 256 elements → float32: Q2_K … Q6_K and IQ4_XS.

Called by `dequant` with bytes (n, type_size); each function returns F32 (n, 256). Sub-blocks of 16
or 32 elements have their own small integer scales, multiplied by one f16 per super-block. The order
of the float operations is that of the gguf package, so that results are equal bit for bit.
"""

import torch

from app.kernels.torch_ref.bits import codebook, fields, half, nibbles

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def q2_k(blocks: torch.Tensor) -> torch.Tensor:
    """16 bytes of scale (low) and minimum (high), 64 bytes of 2-bit numbers, two f16."""
    scale = half(blocks, 80) * (blocks[:, :16] & 15)
    minimum = half(blocks, 82) * (blocks[:, :16] >> 4)
    numbers = fields(blocks[:, 16:80], 2, 32).to(torch.float32)
    return _scaled(numbers, scale).sub_(minimum.unsqueeze(2)).flatten(1)


def q3_k(blocks: torch.Tensor) -> torch.Tensor:
    """32 bytes of third bits (a clear bit means minus 4), 64 of 2-bit numbers, 12 of 6-bit scales,
    one f16.
    """
    packed = blocks[:, 96:108]
    low = nibbles(packed[:, :8], 8)
    high = fields(packed[:, 8:12], 2, 4)
    scales = (low | (high << 4)).to(torch.float32).sub_(32)
    third = fields(blocks[:, :32], 1, 32)
    numbers = (fields(blocks[:, 32:96], 2, 32) | (third << 2)).to(torch.float32).sub_(4)
    return _scaled(numbers, scales.mul_(half(blocks, 108))).flatten(1)


def _six_bit_pairs(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Twelve bytes (n, 12) → eight scales and eight minima (n, 8).

    Bytes 0–3 and 4–7 hold the first four of each in their low six bits; bytes 8–11 hold the low
    nibbles of the last four, whose top two bits are the top bits of bytes 0–7.
    """
    first, second, nibble = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((first & 63, (nibble & 15) | ((first >> 6) << 4)), 1)
    minima = torch.cat((second & 63, (nibble >> 4) | ((second >> 6) << 4)), 1)
    return scales, minima


def q4_k(blocks: torch.Tensor) -> torch.Tensor:
    """Two f16, 12 bytes of 6-bit scales and minima, 128 bytes of 4-bit numbers."""
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    numbers = nibbles(blocks[:, 16:], 32).to(torch.float32)
    scaled = _scaled(numbers, half(blocks, 0) * scales)
    return scaled.sub_((half(blocks, 2) * minima).unsqueeze(2)).flatten(1)


def q5_k(blocks: torch.Tensor) -> torch.Tensor:
    """As Q4_K with 32 bytes of fifth bits before the 4-bit numbers."""
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    fifth = fields(blocks[:, 16:48], 1, 32)
    numbers = (nibbles(blocks[:, 48:], 32) | (fifth << 4)).to(torch.float32)
    scaled = _scaled(numbers, half(blocks, 0) * scales)
    return scaled.sub_((half(blocks, 2) * minima).unsqueeze(2)).flatten(1)


def q6_k(blocks: torch.Tensor) -> torch.Tensor:
    """128 bytes of low nibbles, 64 of 2-bit high parts, 16 signed scales, one f16."""
    low = nibbles(blocks[:, :128], 64)
    high = fields(blocks[:, 128:192], 2, 32)
    numbers = (low | (high << 4)).to(torch.float32).sub_(32)
    scales = blocks[:, 192:208].view(torch.int8).to(torch.float32)
    return _scaled(numbers, half(blocks, 208) * scales).flatten(1)


def iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    """One f16, 16 bits and 4 bytes of 6-bit scales, 128 bytes of indices into a list of values."""
    low = nibbles(blocks[:, 4:8], 1)
    high = fields(blocks[:, 2:4], 2, 1)
    scales = (low | (high << 4)).to(torch.float32).sub_(32)
    numbers = codebook(nibbles(blocks[:, 8:]), IQ4_VALUES)
    return _scaled(numbers, half(blocks, 0) * scales).flatten(1)


def _scaled(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Multiply each of the s sub-blocks of (n, 256) by its scale (n, s): (n, s, 256 / s)."""
    parts: torch.Tensor = numbers.unflatten(1, (scales.shape[1], -1))
    return parts.mul_(scales.unsqueeze(2))
