"""Quantised blocks → float32 in torch, bit for bit what the gguf package computes.

`into` is the one entry: bytes (…, n_blocks, type_size) → F32 (…, n_blocks * block_size). Each
decoder below takes blocks (n, type_size) and returns F32 (n, block_size); the layouts are those of
ggml-common.h. K types and IQ4_XS are in `dequant_k`, other IQ types in `dequant_iq`, those of few
bits in `dequant_few`. Large inputs go through in pieces, so that
the temporaries stay in the cache.
"""

from collections.abc import Callable

import torch

from app.ggml.types import TRAITS, GGMLType
from app.kernels.torch_ref import dequant_few, dequant_iq, dequant_k
from app.kernels.torch_ref.bits import codebook, half, nibbles

_PIECE_ELEMENTS = 1 << 18


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    """Scale f16, 16 bytes of two 4-bit numbers (low half first) that stand for -8…7."""
    return nibbles(blocks[:, 2:]).to(torch.float32).sub_(8).mul_(half(blocks, 0))


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    """Scale f16, minimum f16, 16 bytes of two 4-bit numbers."""
    return nibbles(blocks[:, 4:]).to(torch.float32).mul_(half(blocks, 0)).add_(half(blocks, 2))


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """Four bytes (n, 4) of one bit per element → (n, 32) with the bit in place 4."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    bits = (packed.unsqueeze(2) >> shifts) & 1
    return (bits << 4).flatten(1)


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    """Scale f16, 32 fifth bits, 16 bytes of two low nibbles; numbers stand for -16…15."""
    numbers = nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return numbers.to(torch.float32).sub_(16).mul_(half(blocks, 0))


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    """Scale f16, minimum f16, 32 fifth bits, 16 bytes of two low nibbles."""
    numbers = nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return numbers.to(torch.float32).mul_(half(blocks, 0)).add_(half(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    """Scale f16, 32 signed bytes."""
    return blocks[:, 2:].view(torch.int8).to(torch.float32).mul_(half(blocks, 0))


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    """Scale f16, 16 bytes of two indices into a fixed list of values."""
    return codebook(nibbles(blocks[:, 2:]), dequant_k.IQ4_VALUES).mul_(half(blocks, 0))


def _mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    """Shared exponent (one byte), 16 bytes of two 4-bit floats; the values listed are doubled, so
    the exponent is one less. Exponents 0 and 1 give denormal scales.
    """
    exponent = blocks[:, :1].to(torch.int32)
    normal = (exponent - 1).clamp_(min=0) << 23
    denormal = torch.full_like(exponent, 1 << 21) << exponent.clamp(max=1)
    scale = torch.where(exponent < 2, denormal, normal).view(torch.float32)
    return codebook(nibbles(blocks[:, 1:]), dequant_few.FP4_VALUES).mul_(scale)


_DECODERS: dict[GGMLType, Callable[[torch.Tensor], torch.Tensor]] = {
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.IQ4_NL: _iq4_nl,
    GGMLType.MXFP4: _mxfp4,
    GGMLType.Q2_K: dequant_k.q2_k,
    GGMLType.Q3_K: dequant_k.q3_k,
    GGMLType.Q4_K: dequant_k.q4_k,
    GGMLType.Q5_K: dequant_k.q5_k,
    GGMLType.Q6_K: dequant_k.q6_k,
    GGMLType.IQ4_XS: dequant_k.iq4_xs,
    GGMLType.IQ1_S: dequant_iq.iq1_s,
    GGMLType.IQ1_M: dequant_iq.iq1_m,
    GGMLType.IQ2_XXS: dequant_iq.iq2_xxs,
    GGMLType.IQ2_XS: dequant_iq.iq2_xs,
    GGMLType.IQ2_S: dequant_iq.iq2_s,
    GGMLType.IQ3_XXS: dequant_iq.iq3_xxs,
    GGMLType.IQ3_S: dequant_iq.iq3_s,
    GGMLType.Q1_0: dequant_few.q1_0,
    GGMLType.Q2_0: dequant_few.q2_0,
    GGMLType.TQ1_0: dequant_few.tq1_0,
    GGMLType.TQ2_0: dequant_few.tq2_0,
    GGMLType.NVFP4: dequant_few.nvfp4,
}

TYPES = frozenset(_DECODERS)


def into(type_: GGMLType, blocks: torch.Tensor, result: torch.Tensor) -> None:
    """Decode bytes (…, n_blocks, type_size) into F32 `result` (…, n_blocks * block_size)."""
    traits = TRAITS[type_]
    decode = _DECODERS[type_]
    if result.numel() == 0:
        return
    shape = (*blocks.shape[:-1], traits.block_size)
    rows = blocks.reshape(-1, traits.type_size)
    piece = _PIECE_ELEMENTS // traits.block_size
    if not result.is_contiguous():
        result.copy_(torch.cat([decode(part) for part in rows.split(piece)]).view(result.shape))
        return
    numbers = result.view(shape).view(-1, traits.block_size)
    for part, out in zip(rows.split(piece), numbers.split(piece), strict=True):
        out.copy_(decode(part))


def decoded(type_: GGMLType, blocks: torch.Tensor) -> torch.Tensor:
    """Return F32 (…, n_blocks * block_size) of bytes (…, n_blocks, type_size)."""
    width = blocks.shape[-2] * TRAITS[type_].block_size
    result = torch.empty((*blocks.shape[:-2], width), dtype=torch.float32, device=blocks.device)
    into(type_, blocks, result)
    return result
