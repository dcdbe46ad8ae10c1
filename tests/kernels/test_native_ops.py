"""Every case of the table on the native core, at every built level, against float64.

Nodes without a native kernel run on the reference kernels inside the same plan, so the whole table
holds. Quantised products have int8 activations (ggml's own bound, NMSE 5e-4); products in several
bf16 terms are as good as 16 bits.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from app.devices.native_device import NativeDevice
from app.ggml.op_params import AttentionParams, Params
from app.ggml.ops import Op
from app.ggml.types import TRAITS, GGMLType
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
    if case.op not in (Op.MUL_MAT, Op.MUL_MAT_ID) or weight is None:
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


@pytest.mark.parametrize("order", [0, 1])
def test_every_value_has_its_place_in_a_sorted_row(device: NativeDevice, order: int) -> None:
    rng = np.random.default_rng(order)
    bits = rng.integers(0, 1 << 32, (50, 64), np.uint32)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45], np.float32)
    rows = bits.view(np.float32)
    rows[np.isnan(rows)] = np.nan
    rows[:, rng.permutation(64)[:24]] = np.tile(special, 3)
    source = harness.Source((64, 50), fill=lambda rng, shape: rows.reshape(shape))
    case = harness.Case("sort", Op.ARGSORT, (source,), Params.pack("i", order))
    got = harness.run(device, case)[0][0, 0].astype(int)
    wanted = torch.from_numpy(rows).argsort(stable=True, dim=-1, descending=order == 1)
    np.testing.assert_array_equal(got, wanted.numpy())


def _own_keys(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Each token sees its own run of keys, as streams do that share a cache."""
    n, n_kv = shape[-2:]
    owner = np.arange(n_kv) * n // n_kv
    return np.broadcast_to(np.where(owner == np.arange(n)[:, None], 0.0, -np.inf), shape)


@pytest.mark.parametrize("n_tokens", [2, 5, 8, 9])
@pytest.mark.parametrize("type_", [GGMLType.F32, GGMLType.F16, GGMLType.Q8_0, GGMLType.Q4_0])
def test_streams_see_their_own_keys_only(
    device: NativeDevice, type_: GGMLType, n_tokens: int
) -> None:
    sources = (
        harness.Source((32, n_tokens, 6)),
        harness.Source((32, 403, 2), type_),
        harness.Source((64, 403, 2), type_),
        harness.Source((403, n_tokens), GGMLType.F16, _own_keys),
    )
    params = AttentionParams(0.1).pack()
    case = harness.Case("streams", Op.FLASH_ATTN_EXT, sources, params, nmse=SPLIT_NMSE)
    got, values, _ = harness.run(device, case)
    assert harness.nmse(got, oracle.want(case, values)) <= case.nmse
