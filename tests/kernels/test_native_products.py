"""The native core's decode products at every built level, against the gguf package's weights.

The wanted value is the exact product in float64; quantised types may miss it by what int8
activations cost (NMSE 5e-4, ggml's own bound), the others by float32 sums.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from app.errors import ConfigError
from app.ggml.op_params import Params
from app.ggml.tensor import Shape
from app.ggml.types import TRAITS, GGMLType, row_size
from app.kernels.cpu.layout import Kind, TypeSupport
from app.kernels.cpu.library import LEVELS, NativeLibrary, ThreadPool, load_library
from app.kernels.cpu.step import GROUPED, Ref, StepSpec
from tests.helpers.quant_blocks import random_rows

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

QUANTISED = [
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
]
FLOATS = [GGMLType.F32, GGMLType.F16, GGMLType.BF16]
# Activations in int8 with one scale per 32; and sums of up to 1536 float32 products.
QUANTISED_NMSE, FLOAT_NMSE = 5e-4, 1e-6
ROWS = [1, 15, 16, 17, 49]


@pytest.fixture(params=LEVELS, scope="module")
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    try:
        found, _ = load_library(request.param)
    except ConfigError as error:
        pytest.skip(str(error))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def pool(library: NativeLibrary) -> Iterator[ThreadPool]:
    pool = library.new_pool(2)
    yield pool
    pool.close()


def _ref(data: NDArray[np.generic], type_: GGMLType, ne0: int, n_rows: int) -> Ref:
    size = row_size(type_, ne0)
    ne: Shape = (ne0, n_rows, 1, 1)
    nb: Shape = (TRAITS[type_].type_size, size, size * n_rows, size * n_rows)
    return Ref(data.ctypes.data, size * n_rows, ne, nb, int(type_))


def _run(pool: ThreadPool, *steps: bytes) -> None:
    memory = np.frombuffer(b"".join(steps), np.uint8)
    assert pool.run(memory.ctypes.data, len(steps), None) is None


def _quantised(library: NativeLibrary, pool: ThreadPool, x: Floats) -> Bytes:
    """Return what a QUANTIZE step writes."""
    n_tokens, k = x.shape
    out = np.empty(library.quantize_bytes(k, n_tokens), np.uint8)
    source = _ref(x, GGMLType.F32, k, n_tokens)
    step = bytearray(StepSpec(Kind.QUANTIZE, 0, Params(), None, (source,), x.size).pack(None))
    step[-24:-16] = out.ctypes.data.to_bytes(8, "little")  # Step.scratch
    _run(pool, bytes(step))
    return out


def _product(
    library: NativeLibrary, pool: ThreadPool, type_: GGMLType, weights: Bytes, x: Floats
) -> Floats:
    """Return (n_tokens, n_rows) from grouped weights (n_rows, row size)."""
    n_rows, (n_tokens, k) = weights.shape[0], x.shape
    out = np.full((n_tokens, n_rows), np.nan, np.float32)
    is_quantised = TRAITS[type_].is_quantized
    acts = _quantised(library, pool, x) if is_quantised else x
    weight = _ref(weights, type_, k, n_rows)
    weight = replace(weight, layout=GROUPED if is_quantised else 0)
    activations = Ref(acts.ctypes.data, *_shape_of(x), int(GGMLType.F32))
    dst = _ref(out, GGMLType.F32, n_rows, n_tokens)
    step = StepSpec(Kind.MATVEC, 0, Params(), dst, (weight, activations), weights.size)
    _run(pool, step.pack(None))
    return out


def _shape_of(x: Floats) -> tuple[int, Shape, Shape]:
    ref = _ref(x, GGMLType.F32, x.shape[1], x.shape[0])
    return ref.nbytes, ref.ne, ref.nb


@pytest.mark.parametrize("n_rows", ROWS)
@pytest.mark.parametrize("type_", QUANTISED, ids=lambda t: t.name)
def test_grouping_is_undone_exactly(pool: ThreadPool, type_: GGMLType, n_rows: int) -> None:
    plain = random_rows(type_, n_rows, 512, np.random.default_rng(n_rows))
    data = plain.copy()
    assert pool.repack(int(type_), data.ctypes.data, 512, n_rows, forward=True)
    assert np.array_equal(data, plain) == (n_rows < 16)
    tail = n_rows // 16 * 16
    np.testing.assert_array_equal(data[tail:], plain[tail:])
    assert pool.repack(int(type_), data.ctypes.data, 512, n_rows, forward=False)
    np.testing.assert_array_equal(data, plain)


@pytest.mark.parametrize("type_", FLOATS, ids=lambda t: t.name)
def test_floats_have_no_groups(pool: ThreadPool, type_: GGMLType) -> None:
    data = np.zeros(16 * 64 * 4, np.uint8)
    assert not pool.repack(int(type_), data.ctypes.data, 64, 16, forward=True)


@pytest.mark.parametrize("n_tokens", [1, 3, 8, 15])
@pytest.mark.parametrize("type_", QUANTISED + FLOATS, ids=lambda t: t.name)
def test_products_are_near_the_exact_ones(
    library: NativeLibrary, pool: ThreadPool, type_: GGMLType, n_tokens: int
) -> None:
    assert library.type_support(type_) & TypeSupport.MATVEC
    rng = np.random.default_rng(n_tokens)
    error = energy = 0.0
    for n_rows in ROWS:
        k = 256 * (n_rows % 3 + 1)
        weights = random_rows(type_, n_rows, k, rng)
        x = rng.standard_normal((n_tokens, k), dtype=np.float32)
        exact = dequantize(weights, GGMLQuantizationType(int(type_))).reshape(n_rows, k)
        if TRAITS[type_].is_quantized:
            pool.repack(int(type_), weights.ctypes.data, k, n_rows, forward=True)
        got = _product(library, pool, type_, weights, x)
        want = x.astype(np.float64) @ exact.astype(np.float64).T
        error += float(((got - want) ** 2).sum())
        energy += float((want**2).sum())
    # Over all shapes, as one product alone may cancel; a wrong row is a hundredth of the energy.
    bound = QUANTISED_NMSE if TRAITS[type_].is_quantized else FLOAT_NMSE
    assert error / energy < bound


def test_a_nan_reaches_every_product_that_reads_it(
    library: NativeLibrary, pool: ThreadPool
) -> None:
    weights = random_rows(GGMLType.Q4_1, 16, 64, np.random.default_rng(0))
    pool.repack(int(GGMLType.Q4_1), weights.ctypes.data, 64, 16, forward=True)
    x = np.ones((2, 64), np.float32)
    x[1, 40] = np.nan
    got = _product(library, pool, GGMLType.Q4_1, weights, x)
    assert np.isfinite(got[0]).all() and np.isnan(got[1]).all()
