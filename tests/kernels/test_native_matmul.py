"""Products of many tokens at every level of the native core and on AMX tiles, against the gguf
package.

The rows and tokens are those at which groups of 16 rows, units of 32 and tiles of tokens begin, end
and are left over; threads share units. Quantised weights are rounded to bf16 on AMX (8 significant
bits: 5e-6); in floats, and for weights that are not quantised, 16 bits are left at least.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from app.devices.native_device import NativeDevice
from app.ggml.ops import Op
from app.ggml.types import MODEL_TYPES, TRAITS, GGMLType
from tests.helpers.native import WAY_IDS, WAYS, native_way
from tests.kernels import harness, oracle
from tests.kernels.harness import Case, Source

ROUNDED_NMSE, SPLIT_NMSE = 5e-5, 1e-10
TYPES = sorted(MODEL_TYPES)
SHAPES = [(48, 33), (100, 16), (17, 70)]  # rows, tokens


@pytest.fixture(scope="module", params=WAYS, ids=WAY_IDS)
def device(request: pytest.FixtureRequest) -> Iterator[NativeDevice]:
    with native_way(request.param, threads=3) as device:
        yield device


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("weight", TYPES, ids=lambda type_: type_.name)
def test_many_tokens_equal_float64(
    device: NativeDevice, weight: GGMLType, shape: tuple[int, int]
) -> None:
    rows, tokens = shape
    k = 2 * TRAITS[weight].block_size if TRAITS[weight].is_quantized else 77
    case = Case("product", Op.MUL_MAT, (Source((k, rows), weight), Source((k, tokens))))
    got, values, _ = harness.run(device, case)
    want = oracle.want(case, values)
    assert np.isfinite(got).all()
    bound = ROUNDED_NMSE if TRAITS[weight].is_quantized else SPLIT_NMSE
    assert harness.nmse(got, want) <= bound
