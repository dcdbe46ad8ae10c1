"""The native core against the reference executor: the case table, and products of every type of
weight at odd shapes, at every built level and on AMX tiles.

The bounds are those that the executors promise each other: NMSE 5e-4 where a quantised weight is
multiplied, because activations are rounded to eight bits or weights to bf16, and 1e-6 otherwise.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest

from app.devices.native_device import NativeDevice
from app.devices.torch_device import TorchDevice
from app.ggml.ops import Op
from app.ggml.types import MODEL_TYPES, TRAITS, GGMLType
from tests.devices.graphs import cpu
from tests.helpers.native import WAY_IDS, WAYS, native_way
from tests.kernels import harness
from tests.kernels.cases import CASES
from tests.kernels.harness import Array, Case, Source

QUANTISED_NMSE, NMSE = 5e-4, 1e-6
TYPES = sorted(MODEL_TYPES)
SWAP = (0, 2, 1, 3)
# Rows and tokens, at which groups of 16 rows, units of 32 and steps of up to 8 tokens begin, end
# and are left over; never so few results that all may cancel.
SHAPES = [
    *((100, 1), (15, 2), (16, 3), (17, 4), (31, 5), (33, 6), (48, 7), (63, 8)),
    *((47, 9), (64, 17), (1, 17), (7, 33), (49, 33)),
]
BLOCKS = [1, 3]
FLOAT_K = [5, 77]
OPS = sorted({case.op for case in CASES})


@pytest.fixture(scope="module", params=WAYS, ids=WAY_IDS)
def native(request: pytest.FixtureRequest) -> Iterator[NativeDevice]:
    with native_way(request.param, threads=2) as device:
        yield device


@cache
def _reference() -> TorchDevice:
    return cpu()


@cache
def _wanted(case: Case) -> Array:
    return harness.run(_reference(), case)[0]


def _bound(case: Case) -> float:
    if case.op not in (Op.MUL_MAT, Op.MUL_MAT_ID):
        return NMSE
    weight = case.sources[0]
    assert weight is not None
    return QUANTISED_NMSE if TRAITS[weight.type].is_quantized else NMSE


def _check(native: NativeDevice, cases: Sequence[Case]) -> None:
    for case in cases:
        got, want = harness.run(native, case)[0], _wanted(case)
        finite = np.isfinite(want)
        np.testing.assert_array_equal(got[~finite], want[~finite], case.name)
        error = harness.nmse(got[finite], want[finite])
        assert error < _bound(case), f"{case.name}: NMSE {error}"


def _product(a: Source, b: Source) -> Case:
    return Case(f"{a.type.name} {a.ne} x {b.ne}", Op.MUL_MAT, (a, b))


def _lengths(type_: GGMLType) -> list[int]:
    traits = TRAITS[type_]
    return [n * traits.block_size for n in BLOCKS] if traits.is_quantized else FLOAT_K


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_case_table(native: NativeDevice, op: Op) -> None:
    _check(native, [case for case in CASES if case.op == op])


@pytest.mark.parametrize("type_", TYPES, ids=lambda type_: type_.name)
def test_products_of_one_matrix(native: NativeDevice, type_: GGMLType) -> None:
    cases = [
        _product(Source((k, rows), type_), Source((k, tokens)))
        for k in _lengths(type_)
        for rows, tokens in SHAPES
    ]
    _check(native, cases)


@pytest.mark.parametrize("type_", TYPES, ids=lambda type_: type_.name)
def test_products_of_several_matrices_and_of_views(native: NativeDevice, type_: GGMLType) -> None:
    cases = []
    for k, tokens in zip(_lengths(type_), (5, 17), strict=True):
        cases += [
            _product(Source((k, 17, 2), type_), Source((k, tokens, 6))),
            _product(Source((k, 33, 2, 2), type_), Source((k, tokens, 4, 4))),
            _product(Source((k, 32, 2, 2), type_), Source((k, tokens, 2, 4))),
            _product(Source((k, 47), type_), Source((k, tokens, 2, 2))),
            _product(Source((k, 17, 3), type_, permute=SWAP), Source((k, tokens, 3))),
            _product(Source((k, 32, 3), type_), Source((k, tokens, 6), permute=SWAP)),
            _product(Source((k, 18), type_), Source((k, tokens), gap=3)),
            _product(Source((k, 18), type_, gap=1), Source((k, 1))),
        ]
    _check(native, cases)
