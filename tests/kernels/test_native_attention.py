"""Attention of many tokens at every level of the native core, on AMX tiles and without: blocks and
tiles that end anywhere, masks that hide whole tiles, against float64.

Both forms must be as good as 16-bit factors; the sizes are those at which strips of 32 tokens,
tiles of 64 keys and vectors of 16 elements begin, end and are left over.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from app.devices.native_device import NativeDevice
from app.ggml.op_params import AttentionParams
from app.ggml.ops import Op
from app.ggml.types import GGMLType
from tests.helpers.native import WAY_IDS, WAYS, native_way
from tests.kernels import harness, oracle
from tests.kernels.harness import Case, Rng, Source

NMSE = 1e-10
F16, F32, Q8_0 = GGMLType.F16, GGMLType.F32, GGMLType.Q8_0
SWAP = (0, 2, 1, 3)


@pytest.fixture(scope="module", params=WAYS, ids=WAY_IDS)
def device(request: pytest.FixtureRequest) -> Iterator[NativeDevice]:
    with native_way(request.param, threads=3) as device:
        yield device


def causal(rng: Rng, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """Each token sees 150 keys up to its own, the last token up to the last key."""
    n, n_kv = shape[-2:]
    age = np.arange(n)[:, None] + (n_kv - n) - np.arange(n_kv)[None, :]
    return np.broadcast_to(np.where((age >= 0) & (age < 150), 0.0, -np.inf), shape)


def attention(
    d: int, n: int, n_kv: int, heads: tuple[int, int], kv: GGMLType, fill: harness.Fill = causal
) -> Case:
    q = Source((d, n, heads[0]), permute=SWAP)
    k, v = (Source((d, n_kv, heads[1]), kv, permute=SWAP) for _ in range(2))
    sources = (q, k, v, Source((n_kv, n), F16, fill))
    return Case("attention", Op.FLASH_ATTN_EXT, sources, AttentionParams(0.2).pack())


CASES = [
    attention(64, 200, 200, (6, 2), F16),
    attention(64, 70, 333, (3, 3), F16),
    attention(80, 33, 65, (4, 1), F32),
    attention(40, 17, 64, (2, 1), GGMLType.BF16),
    attention(256, 48, 129, (4, 1), F16),
    attention(96, 31, 100, (5, 5), Q8_0),
    attention(64, 9, 40, (9, 3), F16, harness.masked_rows),
    attention(64, 130, 190, (2, 2), F16, harness.mask),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.sources[0].ne}")
def test_many_tokens_equal_float64(device: NativeDevice, case: Case) -> None:
    got, values, _ = harness.run(device, case)
    want = oracle.want(case, values)
    assert np.isfinite(got).all()
    assert harness.nmse(got, want) <= NMSE
