"""Super-blocks of 256 elements whose numbers are looked up eight or four at a time: IQ1, IQ2 and
IQ3 types → float32.

Called by `dequant` with bytes (n, type_size); each function returns F32 (n, 256). The tables of
points are those of the `gguf` package, unpacked when a type is first met. The order of the float
operations is that package's, so that results are equal bit for bit.
"""

from functools import cache

import torch

from app.kernels.torch_ref.bits import fields, half


@cache
def _points(name: str, device: torch.device) -> torch.Tensor:
    """Return the points of a type, F32 (count, 4 or 8)."""
    from gguf import quants

    codec = getattr(quants, name)
    codec.init_grid()
    return torch.from_numpy(codec.grid[0, 0].copy()).to(device)


@cache
def _even_signs(device: torch.device) -> torch.Tensor:
    """Return 128 bytes whose eighth bit makes the number of set bits even."""
    low = torch.arange(128)
    ones = ((low.unsqueeze(1) >> torch.arange(7)) & 1).sum(1)
    return (low | ((ones % 2) << 7)).to(torch.uint8).to(device)


def _words(blocks: torch.Tensor, at: int, count: int, size: int) -> torch.Tensor:
    """Read `count` little-endian numbers of `size` bytes (n, count) as I64."""
    parts = blocks[:, at : at + count * size].unflatten(1, (count, size)).to(torch.int64)
    words: torch.Tensor = parts << torch.arange(0, 8 * size, 8, device=blocks.device)
    return words.sum(2)


def _signs(packed: torch.Tensor) -> torch.Tensor:
    """Bytes (…) → factors 1, or -1 for a set bit, F32 (…, 8)."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    bits = (packed.to(torch.uint8).unsqueeze(-1) >> shifts) & 1
    factors: torch.Tensor = bits.to(torch.float32).mul_(-2).add_(1)
    return factors


def _signed(
    scale: torch.Tensor, points: torch.Tensor, index: torch.Tensor, signs: torch.Tensor
) -> torch.Tensor:
    """Scale (n, m) times points of index (n, 32 or 64) times signs (n, 32, 8) → (n, 256)."""
    numbers = points[index].view(index.shape[0], 32, 8) * signs
    return (scale.unsqueeze(2) * numbers.view(*scale.shape, -1)).flatten(1)


def _quarter(blocks: torch.Tensor, scales: torch.Tensor, factor: float) -> torch.Tensor:
    return half(blocks, 0) * (0.5 + scales.to(torch.float32)) * factor


def iq2_xxs(blocks: torch.Tensor) -> torch.Tensor:
    """One f16; eight times four bytes of indices, four times seven signs and a 4-bit scale."""
    index = blocks[:, 2:].unflatten(1, (8, 8))[:, :, :4].flatten(1).to(torch.int64)
    packed = _words(blocks, 2, 16, 4)[:, 1::2]
    signs = _signs(_even_signs(blocks.device)[_sevens(packed)])
    scale = _quarter(blocks, packed >> 28, 0.25)
    return _signed(scale, _points("IQ2_XXS", blocks.device), index, signs)


def _sevens(packed: torch.Tensor) -> torch.Tensor:
    """Numbers (n, 8) → their four lowest fields of seven bits (n, 32)."""
    shifts = torch.arange(0, 28, 7, device=packed.device)
    return ((packed.unsqueeze(2) >> shifts) & 127).flatten(1)


def iq2_xs(blocks: torch.Tensor) -> torch.Tensor:
    """One f16, 32 numbers of nine bits of index and seven of signs, 16 4-bit scales."""
    packed = _words(blocks, 2, 32, 2)
    signs = _signs(_even_signs(blocks.device)[packed >> 9])
    scale = _quarter(blocks, _pairs(blocks[:, 66:74]), 0.25)
    return _signed(scale, _points("IQ2_XS", blocks.device), packed & 511, signs)


def _pairs(packed: torch.Tensor) -> torch.Tensor:
    """Bytes (n, m) → their nibbles, low before high (n, 2m)."""
    return torch.stack((packed & 15, packed >> 4), 2).flatten(1)


def _high(packed: torch.Tensor, width: int) -> torch.Tensor:
    """Bytes (n, m) → fields of `width` bits, lowest first, moved above a byte (n, 8m / width)."""
    return fields(packed, width, 1).to(torch.int64) << 8


def iq2_s(blocks: torch.Tensor) -> torch.Tensor:
    """One f16, 32 low bytes of indices, 32 bytes of signs, eight of high bits, 16 4-bit scales."""
    index = blocks[:, 2:34].to(torch.int64) | _high(blocks[:, 66:74], 2)
    scale = _quarter(blocks, _pairs(blocks[:, 74:82]), 0.25)
    return _signed(scale, _points("IQ2_S", blocks.device), index, _signs(blocks[:, 34:66]))


def iq3_xxs(blocks: torch.Tensor) -> torch.Tensor:
    """One f16, 64 indices, eight times four times seven signs and a 4-bit scale."""
    packed = _words(blocks, 66, 8, 4)
    signs = _signs(_even_signs(blocks.device)[_sevens(packed)])
    scale = _quarter(blocks, packed >> 28, 0.5)
    index = blocks[:, 2:66].to(torch.int64)
    return _signed(scale, _points("IQ3_XXS", blocks.device), index, signs)


def iq3_s(blocks: torch.Tensor) -> torch.Tensor:
    """One f16, 64 low bytes of indices, eight bytes of high bits, 32 of signs, eight scales."""
    index = blocks[:, 2:66].to(torch.int64) | _high(blocks[:, 66:74], 1)
    scale = half(blocks, 0) * (1 + 2 * _pairs(blocks[:, 106:110]).to(torch.float32))
    return _signed(scale, _points("IQ3_S", blocks.device), index, _signs(blocks[:, 74:106]))


def _shifted(
    scale: torch.Tensor, index: torch.Tensor, negative: torch.Tensor, blocks: torch.Tensor
) -> torch.Tensor:
    """Scale (n, m) times points of index (n, 32), each moved by an eighth up or down (n, 32)."""
    delta = torch.where(negative, -0.125, 0.125).unsqueeze(2)
    numbers = _points("IQ1_S", blocks.device)[index] + delta
    return (scale.unsqueeze(2) * numbers.view(*scale.shape, -1)).flatten(1)


def iq1_s(blocks: torch.Tensor) -> torch.Tensor:
    """One f16, 32 low bytes of indices, eight times four 3-bit high parts, a 3-bit scale and the
    direction.
    """
    packed = _words(blocks, 34, 8, 2)
    scale = half(blocks, 0) * (2 * ((packed >> 12) & 7) + 1).to(torch.float32)
    shifts = torch.arange(0, 12, 3, device=blocks.device)
    high = ((packed.unsqueeze(2) >> shifts) & 7).flatten(1) << 8
    negative = (packed >> 15).repeat_interleave(4, 1) != 0
    return _shifted(scale, blocks[:, 2:34].to(torch.int64) | high, negative, blocks)


def iq1_m(blocks: torch.Tensor) -> torch.Tensor:
    """32 low bytes of indices, 32 nibbles of a 3-bit high part and the direction, four times four
    3-bit scales and a nibble of the f16.
    """
    packed = _words(blocks, 48, 4, 2)
    nibble = packed >> 12
    bits = nibble[:, 0] | (nibble[:, 1] << 4) | (nibble[:, 2] << 8) | (nibble[:, 3] << 12)
    whole = bits.to(torch.int32).to(torch.int16).view(torch.float16).to(torch.float32)
    shifts = torch.arange(0, 12, 3, device=blocks.device)
    scales = ((packed.unsqueeze(2) >> shifts) & 7).flatten(1)
    scale = whole.unsqueeze(1) * (2 * scales + 1).to(torch.float32)
    upper = _pairs(blocks[:, 32:48]).to(torch.int64)
    index = blocks[:, :32].to(torch.int64) | ((upper & 7) << 8)
    return _shifted(scale, index, (upper & 8) != 0, blocks)
