"""Every case of the table on the native core, at every built level, against float64.

Nodes without a native kernel run on the reference kernels inside the same plan, so the whole table
holds. Quantised products have int8 activations (ggml's own bound, NMSE 5e-4); products in several
bf16 terms are as good as 16 bits.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from app.devices.native_device import NativeDevice
from app.ggml.ops import Op
from app.ggml.types import TRAITS
from app.kernels.cpu.library import LEVELS
from tests.helpers.native import native_cpu
from tests.kernels import harness, oracle
from tests.kernels.cases import CASES

QUANTISED_NMSE, SPLIT_NMSE = 5e-4, 1e-10


@pytest.fixture(scope="module", params=[(level, 1 + i) for i, level in enumerate(LEVELS)], ids=str)
def device(request: pytest.FixtureRequest) -> Iterator[NativeDevice]:
    level, threads = request.param
    device = native_cpu(threads, level)
    yield device
    device.close()


def _tolerance(case: harness.Case) -> float:
    if case.op == Op.FLASH_ATTN_EXT:
        return max(case.nmse, SPLIT_NMSE)
    weight = case.sources[0]
    if case.op != Op.MUL_MAT or weight is None:
        return case.nmse
    return max(case.nmse, QUANTISED_NMSE if TRAITS[weight.type].is_quantized else SPLIT_NMSE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_equals_float64(device: NativeDevice, case: harness.Case) -> None:
    got, values, _ = harness.run(device, case)
    want = oracle.want(case, values)
    assert got.shape == want.shape
    if case.exact:
        np.testing.assert_array_equal(got, want.astype(np.float32).astype(np.float64))
    else:
        assert np.isfinite(got).all()
        assert harness.nmse(got, want) <= _tolerance(case)
