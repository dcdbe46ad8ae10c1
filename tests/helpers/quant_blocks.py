"""Random quantised rows of every type that a model may use, for tests of readers and kernels.

Types that the `gguf` package can quantise come from normal floats. For the others it has only a
decoder, so their blocks are random bits under chosen scales: every bit pattern of quants and
sub-scales occurs, and the values still have about the wanted standard deviation.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from app.ggml.types import TRAITS, GGMLType, row_size


@dataclass(frozen=True, slots=True)
class _Scales:
    """Byte positions of the F16 scale and minimum in a block; the minimum centres the values."""

    d_at: int
    min_at: int | None = None
    min_ratio: float = 0.0


_RANDOM_BITS: Final = {
    GGMLType.Q2_K: _Scales(80, 82, 1.5),
    GGMLType.Q3_K: _Scales(108),
    GGMLType.Q4_K: _Scales(0, 2, 7.5),
    GGMLType.Q5_K: _Scales(0, 2, 15.5),
    GGMLType.Q6_K: _Scales(208),
    GGMLType.IQ4_NL: _Scales(0),
    GGMLType.IQ4_XS: _Scales(0),
}


def random_rows(
    type_: GGMLType, n_rows: int, ne0: int, rng: np.random.Generator, std: float = 1.0
) -> NDArray[np.uint8]:
    """Return rows of `ne0` elements as bytes (n_rows, row size)."""
    if type_ in _RANDOM_BITS:
        return _random_blocks(type_, n_rows, ne0, rng, std)
    values = rng.standard_normal((n_rows, ne0), dtype=np.float32) * np.float32(std)
    packed = quantize(values, GGMLQuantizationType(type_))
    return np.ascontiguousarray(packed).view(np.uint8).reshape(n_rows, row_size(type_, ne0))


def _random_blocks(
    type_: GGMLType, n_rows: int, ne0: int, rng: np.random.Generator, std: float
) -> NDArray[np.uint8]:
    size, scales = TRAITS[type_].type_size, _RANDOM_BITS[type_]
    n_blocks = n_rows * row_size(type_, ne0) // size
    blocks = rng.integers(0, 256, (n_blocks, size), dtype=np.uint8)
    unit = np.ones(n_blocks, np.float32)
    _set_scales(blocks, scales, unit)
    spread = float(dequantize(blocks, GGMLQuantizationType(type_)).std())
    sign = rng.choice(np.array([-1.0, 1.0], np.float32), n_blocks)
    if scales.min_at is not None:
        sign = unit
    factor = rng.uniform(0.5, 1.5, n_blocks).astype(np.float32)
    _set_scales(blocks, scales, sign * factor * np.float32(std / spread))
    return blocks.reshape(n_rows, -1)


def _set_scales(blocks: NDArray[np.uint8], scales: _Scales, d: NDArray[np.float32]) -> None:
    blocks[:, scales.d_at : scales.d_at + 2] = _half_bytes(d)
    if scales.min_at is not None:
        blocks[:, scales.min_at : scales.min_at + 2] = _half_bytes(d * scales.min_ratio)


def _half_bytes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    return values.astype("<f2").reshape(-1, 1).view(np.uint8)
