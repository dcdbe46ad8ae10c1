"""The 64 bytes of parameters that every ggml operation carries, and typed readers for the
operations that use them.

The layout of each class follows the `ggml_set_op_params` calls of ggml.c at llama.cpp b11434.
Floats and integers share the same sixteen 32-bit words, so `Params` keeps the raw words and each
class below packs and unpacks its own.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

PARAMS_BYTES = 64


@dataclass(frozen=True, slots=True)
class Params:
    """Sixteen little-endian 32-bit words."""

    raw: bytes = bytes(PARAMS_BYTES)

    @classmethod
    def pack(cls, layout: str, *values: int | float) -> Self:
        """Pack `values` by a struct layout, zero-padded to 64 bytes."""
        return cls(struct.pack("<" + layout, *values).ljust(PARAMS_BYTES, b"\0"))

    def unpack(self, layout: str, at: int = 0) -> tuple[int | float, ...]:
        """Unpack a struct layout from byte `at`."""
        return struct.unpack_from("<" + layout, self.raw, at)

    def i32(self, index: int) -> int:
        """Word `index` as a signed integer."""
        return int(struct.unpack_from("<i", self.raw, 4 * index)[0])

    def f32(self, index: int) -> float:
        """Word `index` as a float."""
        return float(struct.unpack_from("<f", self.raw, 4 * index)[0])


@dataclass(frozen=True, slots=True)
class RopeParams:
    """Parameters of ROPE; `app.ggml.op_rules.ROPE_MODES` has the modes. `sections` says how many
    pairs turn by each of a token's four positions, in the modes that have those.
    """

    n_dims: int
    mode: int
    n_ctx_orig: int
    freq_base: float
    freq_scale: float
    ext_factor: float
    attn_factor: float
    beta_fast: float
    beta_slow: float
    n_offs: int = 0
    sections: tuple[int, int, int, int] = (0, 0, 0, 0)

    LAYOUT: ClassVar[str] = "5i6f4ii"

    def pack(self) -> Params:
        """Pack into the wire form."""
        return Params.pack(
            self.LAYOUT,
            0,
            self.n_dims,
            self.mode,
            0,
            self.n_ctx_orig,
            self.freq_base,
            self.freq_scale,
            self.ext_factor,
            self.attn_factor,
            self.beta_fast,
            self.beta_slow,
            *self.sections,
            self.n_offs,
        )

    @classmethod
    def unpack(cls, params: Params) -> Self:
        """Unpack from the wire form."""
        return cls(
            n_dims=params.i32(1),
            mode=params.i32(2),
            n_ctx_orig=params.i32(4),
            freq_base=params.f32(5),
            freq_scale=params.f32(6),
            ext_factor=params.f32(7),
            attn_factor=params.f32(8),
            beta_fast=params.f32(9),
            beta_slow=params.f32(10),
            n_offs=params.i32(15),
            sections=(params.i32(11), params.i32(12), params.i32(13), params.i32(14)),
        )


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """Parameters of FLASH_ATTN_EXT; SOFT_MAX has the first two."""

    scale: float
    max_bias: float = 0.0
    logit_softcap: float = 0.0

    def pack(self) -> Params:
        """Pack into the wire form."""
        return Params.pack("3f", self.scale, self.max_bias, self.logit_softcap)

    @classmethod
    def unpack(cls, params: Params) -> Self:
        """Unpack from the wire form."""
        return cls(params.f32(0), params.f32(1), params.f32(2))
