"""Tensor types of ggml: their numbers, block sizes and row sizes.

Numbers and sizes are part of GGUF and of the wire protocol (llama.cpp b11434 and b11739). A
quantised row is a whole number of blocks. `MODEL_TYPES` are those that a model file may use here;
the loader refuses every other one by name.
"""

from dataclasses import dataclass
from enum import IntEnum


class GGMLType(IntEnum):
    """A tensor type; the value is its number in GGUF and on the wire."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42


@dataclass(frozen=True, slots=True)
class TypeTraits:
    """Layout of one type: `block_size` elements stand in `type_size` bytes."""

    name: str
    block_size: int
    type_size: int

    @property
    def is_quantized(self) -> bool:
        """Whether elements share a scale and cannot be addressed one by one."""
        return self.block_size > 1


TRAITS: dict[GGMLType, TypeTraits] = {
    GGMLType.F32: TypeTraits("f32", 1, 4),
    GGMLType.F16: TypeTraits("f16", 1, 2),
    GGMLType.Q4_0: TypeTraits("q4_0", 32, 18),
    GGMLType.Q4_1: TypeTraits("q4_1", 32, 20),
    GGMLType.Q5_0: TypeTraits("q5_0", 32, 22),
    GGMLType.Q5_1: TypeTraits("q5_1", 32, 24),
    GGMLType.Q8_0: TypeTraits("q8_0", 32, 34),
    GGMLType.Q8_1: TypeTraits("q8_1", 32, 36),
    GGMLType.Q2_K: TypeTraits("q2_K", 256, 84),
    GGMLType.Q3_K: TypeTraits("q3_K", 256, 110),
    GGMLType.Q4_K: TypeTraits("q4_K", 256, 144),
    GGMLType.Q5_K: TypeTraits("q5_K", 256, 176),
    GGMLType.Q6_K: TypeTraits("q6_K", 256, 210),
    GGMLType.Q8_K: TypeTraits("q8_K", 256, 292),
    GGMLType.IQ2_XXS: TypeTraits("iq2_xxs", 256, 66),
    GGMLType.IQ2_XS: TypeTraits("iq2_xs", 256, 74),
    GGMLType.IQ3_XXS: TypeTraits("iq3_xxs", 256, 98),
    GGMLType.IQ1_S: TypeTraits("iq1_s", 256, 50),
    GGMLType.IQ4_NL: TypeTraits("iq4_nl", 32, 18),
    GGMLType.IQ3_S: TypeTraits("iq3_s", 256, 110),
    GGMLType.IQ2_S: TypeTraits("iq2_s", 256, 82),
    GGMLType.IQ4_XS: TypeTraits("iq4_xs", 256, 136),
    GGMLType.I8: TypeTraits("i8", 1, 1),
    GGMLType.I16: TypeTraits("i16", 1, 2),
    GGMLType.I32: TypeTraits("i32", 1, 4),
    GGMLType.I64: TypeTraits("i64", 1, 8),
    GGMLType.F64: TypeTraits("f64", 1, 8),
    GGMLType.IQ1_M: TypeTraits("iq1_m", 256, 56),
    GGMLType.BF16: TypeTraits("bf16", 1, 2),
    GGMLType.TQ1_0: TypeTraits("tq1_0", 256, 54),
    GGMLType.TQ2_0: TypeTraits("tq2_0", 256, 66),
    GGMLType.MXFP4: TypeTraits("mxfp4", 32, 17),
    GGMLType.NVFP4: TypeTraits("nvfp4", 64, 36),
    GGMLType.Q1_0: TypeTraits("q1_0", 128, 18),
    GGMLType.Q2_0: TypeTraits("q2_0", 64, 18),
}

MODEL_TYPES = frozenset(
    {
        GGMLType.F32,
        GGMLType.F16,
        GGMLType.BF16,
        GGMLType.Q4_0,
        GGMLType.Q4_1,
        GGMLType.Q5_0,
        GGMLType.Q5_1,
        GGMLType.Q8_0,
        GGMLType.Q2_K,
        GGMLType.Q3_K,
        GGMLType.Q4_K,
        GGMLType.Q5_K,
        GGMLType.Q6_K,
        GGMLType.IQ4_NL,
        GGMLType.IQ4_XS,
        GGMLType.MXFP4,
    }
)


def type_from_name(name: str) -> GGMLType:
    """Return the type that ggml calls `name` (any case).

    Raises: KeyError.
    """
    return _BY_NAME[name.lower()]


def row_size(type_: GGMLType, ne0: int) -> int:
    """Bytes of one row of `ne0` elements.

    Raises: ValueError when `ne0` is not a whole number of blocks.
    """
    traits = TRAITS[type_]
    blocks, rest = divmod(ne0, traits.block_size)
    if rest:
        raise ValueError(
            f"row of {ne0} elements of {traits.name}: expected a multiple of {traits.block_size}"
        )
    return blocks * traits.type_size


_BY_NAME = {traits.name.lower(): type_ for type_, traits in TRAITS.items()}
