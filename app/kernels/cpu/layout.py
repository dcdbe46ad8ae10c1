"""The structs that cross from Python to the native core, as numpy structured types.

They mirror `csrc/plan.h` field by field; `struct_numbers` gives the sizes and offsets that the
library's `ls_layout` must report, and a library that reports others is not used. Shapes and strides
are ggml's: `ne` counts elements, `nb` counts bytes, fastest first.
"""

import struct
from enum import IntEnum, IntFlag
from typing import Final

import numpy as np

MAX_SOURCES: Final = 5
N_PARAMS: Final = 16


class Kind(IntEnum):
    """What a step does."""

    NOP = 0
    QUANTIZE = 1
    MATVEC = 2
    MATMUL = 3
    BINARY = 4
    SCALE = 5
    RMS_NORM = 6
    ROPE = 7
    SET_ROWS = 8
    GET_ROWS = 9
    ATTENTION = 10
    GLU = 11
    UNARY = 12
    COPY = 13
    SOFT_MAX = 14
    ROPE_TABLE = 15
    ATTENTION_COMBINE = 16
    CONVERT_BF16 = 17
    MUL_MAT_ID = 18
    ADD_ID = 19
    ARGSORT = 20
    SUM_ROWS = 21
    CLAMP = 22
    NORM = 23


class StepFlag(IntFlag):
    """How threads share a step."""

    NONE = 0
    SOLO = 1
    FREE_END = 2


class TypeSupport(IntFlag):
    """What the native core can do with a tensor type."""

    NONE = 0
    MATVEC = 1
    MATMUL = 2
    GET_ROWS = 4
    SET_ROWS = 8


class Status(IntEnum):
    """What a run of steps returns."""

    OK = 0
    BAD_INDEX = 1
    UNSUPPORTED = 2


TENSOR_REF: Final = np.dtype(
    [
        ("data", "<u8"),
        ("ne", "<i8", (4,)),
        ("nb", "<i8", (4,)),
        ("type", "<i4"),
        ("layout", "<i4"),
    ],
    align=True,
)
STEP: Final = np.dtype(
    [
        ("kind", "<i4"),
        ("node", "<i4"),
        ("params", "V64"),
        ("dst", TENSOR_REF),
        ("src", TENSOR_REF, (MAX_SOURCES,)),
        ("scratch", "<u8"),
        ("scratch_bytes", "<i8"),
        ("flags", "<i8"),
    ],
    align=True,
)

# The same as one struct format: packing by it is ten times faster than filling an array of STEP.
_REF: Final = "Q4q4qii"
STEP_FORMAT: Final = struct.Struct("<ii64s" + (1 + MAX_SOURCES) * _REF + "Qqq")
NO_REF: Final = (0,) * 11


def struct_numbers() -> list[int]:
    """Return sizes and offsets in the order of `ls_layout`."""
    numbers: list[int] = []
    for record in (TENSOR_REF, STEP):
        fields = record.fields
        assert fields is not None and record.names is not None
        numbers += [record.itemsize, *(fields[name][1] for name in record.names)]
    return numbers
