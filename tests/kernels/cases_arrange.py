"""Cases of the operations that move, make or count elements; part of `tests.kernels.cases`."""

from dataclasses import replace
from typing import Final

import numpy as np

from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.types import GGMLType
from tests.kernels.harness import Case, Source, below

F32, F16, I32 = GGMLType.F32, GGMLType.F16, GGMLType.I32
SWAP = (0, 2, 1, 3)


def _times(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.random(shape) * 1000


def _into_cases() -> list[Case]:
    whole, part = Source((12, 5, 4, 3)), Source((6, 3, 2, 2))
    rows = Params.pack("5i", 48, 240, 960, 48 + 8, 0)
    spread = Params.pack("5i", 96, 240, 1920, 4, 0)
    packed = Params.pack("5i", 24, 72, 144, 120, 0)
    cases = []
    for op in (Op.ACC, Op.SET):
        kept = replace(rows, raw=rows.raw[:16] + b"\1\0\0\0" + rows.raw[20:])
        tail = Source((12, 1), gap=3)
        cases += [
            Case(f"{op.name}-rows", op, (whole, part), rows),
            Case(f"{op.name}-inplace", op, (whole, part), kept, inplace=0),
            Case(f"{op.name}-spread", op, (whole, part), spread),
            Case(f"{op.name}-packed", op, (whole, part), packed),
            Case(f"{op.name}-last-row", op, (whole, tail), Params.pack("4i", 48, 48, 48, 2832)),
        ]
    integers = (Source((12, 5, 4, 3), I32, below(99)), Source((6, 3, 2, 2), I32, below(99)))
    cases.append(Case("SET-i32", Op.SET, integers, rows, exact=True))
    return cases


def _shape_cases() -> list[Case]:
    x = Source((7, 5, 4, 3))
    strided = replace(x, permute=SWAP, gap=2)
    pads = Params.pack("9i", 1, 2, 0, 3, 4, 0, 1, 1, 0)
    circle = Params.pack("9i", 7, 2, 0, 5, 3, 0, 1, 1, 1)
    square = Source((6, 6, 2, 3))
    cases = [
        Case("PAD", Op.PAD, (x,), pads, exact=True),
        Case("PAD-permuted", Op.PAD, (strided,), pads, exact=True),
        Case("PAD-nothing", Op.PAD, (x,), exact=True),
        Case("PAD-circular", Op.PAD, (strided,), circle, exact=True),
        Case("PAD_REFLECT_1D", Op.PAD_REFLECT_1D, (x,), Params.pack("2i", 6, 3), exact=True),
        Case("PAD_REFLECT_1D-left", Op.PAD_REFLECT_1D, (x,), Params.pack("2i", 2, 0), exact=True),
        Case("ROLL", Op.ROLL, (strided,), Params.pack("4i", 3, -2, 1, -1), exact=True),
        Case("DIAG", Op.DIAG, (Source((9, 1, 4, 2)),), exact=True),
        Case("FILL", Op.FILL, (x,), Params.pack("f", -1.5), exact=True),
        Case("FILL-inplace", Op.FILL, (x,), Params.pack("f", 2.5), inplace=0, exact=True),
        Case("FILL-f16", Op.FILL, (replace(x, type=F16),), Params.pack("f", 0.25), exact=True),
        Case("ARANGE", Op.ARANGE, (), Params.pack("3f", 0, 10, 1), exact=True),
        Case("ARANGE-part", Op.ARANGE, (), Params.pack("3f", -2.0, 3.1, 0.25), exact=True),
    ]
    cases += [
        Case(f"TRI-{k}", Op.TRI, (square,), Params.pack("i", k), exact=True) for k in range(4)
    ]
    for dim in (1, 8, 9):
        times, params = Source((5,), fill=_times), Params.pack("2i", dim, 10000)
        # Angles of up to a thousand, rounded to F32: 2^-24 * 1000, squared.
        title = f"TIMESTEP_EMBEDDING-{dim}"
        cases.append(Case(title, Op.TIMESTEP_EMBEDDING, (times,), params, nmse=1e-8))
    return cases


def _sum_cases() -> list[Case]:
    x, counted = Source((12, 6, 4, 2)), Source((30, 4), I32, below(3))
    a, b = Source((9, 5, 2, 3)), Source((4, 5, 4, 3))
    cases = [
        Case("CUMSUM", Op.CUMSUM, (replace(x, gap=1),), nmse=1e-11),
        Case("REPEAT_BACK", Op.REPEAT_BACK, (x,), ne=(3, 6, 2, 1), nmse=1e-11),
        Case("REPEAT_BACK-one", Op.REPEAT_BACK, (x,), ne=(1,), nmse=1e-9),
        Case("COUNT_EQUAL", Op.COUNT_EQUAL, (counted, counted), exact=True),
        Case("DIAG_MASK_ZERO", Op.DIAG_MASK_ZERO, (x,), Params.pack("i", 2), exact=True),
        Case("DIAG_MASK_ZERO-here", Op.DIAG_MASK_ZERO, (x,), Params(), inplace=0, exact=True),
        Case("OUT_PROD", Op.OUT_PROD, (a, b)),
        Case("OUT_PROD-transposed", Op.OUT_PROD, (a, replace(b, permute=(1, 0, 2, 3)))),
        Case("OUT_PROD-f16", Op.OUT_PROD, (replace(a, type=F16), Source((4, 5, 2, 3)))),
        Case("OUT_PROD-no-k", Op.OUT_PROD, (Source((9, 0)), Source((4, 0)))),
        Case("OUT_PROD-q4_0", Op.OUT_PROD, (Source((64, 5), GGMLType.Q4_0), Source((3, 5)))),
    ]
    for groups in (1, 4, 3, 9):
        params, channels = Params.pack("if", groups, 1e-5), Source((5, 3, 8, 2))
        title = f"GROUP_NORM-{groups}"
        cases.append(Case(title, Op.GROUP_NORM, (channels,), params))
        cases.append(Case(f"{title}-inplace", Op.GROUP_NORM, (channels,), params, inplace=0))
    return cases


ARRANGE_CASES: Final = [*_into_cases(), *_shape_cases(), *_sum_cases()]
