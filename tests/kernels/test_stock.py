"""The reference executor against stock ggml's CPU backend, over the whole case table.

Both read the same memory. Stock rounds activations to eight bits in quantised products, looks GELU
up in an F16 table and adds up attention in F16, so the bound is its precision, not ours; what
counts here is that both mean the same thing.
"""

import ctypes
from functools import cache

import numpy as np
import pytest
import torch

from app.ggml.types import TRAITS, GGMLType
from app.kernels.torch_ref.quantize import ENCODERS
from tests.devices.graphs import cpu
from tests.helpers.assets import asset
from tests.kernels import harness
from tests.kernels.cases import BINARY, CASES, KV_NMSE, QUANTISED
from tests.kernels.cases_image import IMAGE_CASES
from tests.kernels.cases_recurrent import RECURRENT_CASES
from tests.kernels.stock import Stock

pytestmark = pytest.mark.peer_v7

# Eight-bit activations: a block's greatest element over 127, squared over 12, and some.
NMSE = 5e-4
# What stock does not round to eight bits, look up or add up in F16: products of an F16 kernel are
# the least exact.
FLOAT_NMSE = 1e-6
EXACT = {case.op for case in (*IMAGE_CASES, *RECURRENT_CASES)}

# ggml ends the process on these: mixed types, gaps between rows, decoding to F16.
REFUSED_BY_STOCK = {
    *(f"{op.name}-f32-f16" for op in BINARY),
    "SCALE-gap",
    *(f"CPY-{type_.name}-f16" for type_ in QUANTISED),
}
RUNNABLE = [case for case in CASES if case.name not in REFUSED_BY_STOCK]


@cache
def _stock() -> Stock:
    return Stock(asset("peer_v7") / "bin")


def _encodes(case: harness.Case) -> float:
    """Two encoders may pick neighbouring levels: then results differ by the type's spacing."""
    types = [s.type for s in case.sources if s is not None]
    target = harness.OVERWRITTEN.get(case.op)
    return 0.0 if target is None else KV_NMSE.get(types[target], 0.0)


@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.name)
def test_results_agree_with_stock(case: harness.Case) -> None:
    device = cpu()
    got, _, _ = harness.run(device, case)
    device.close()
    want, _ = _stock().run(case)
    if np.isinf(want).any():
        np.testing.assert_array_equal(got, want)
    else:
        bound = FLOAT_NMSE if case.op in EXACT else max(NMSE, _encodes(case))
        assert harness.nmse(got, want) <= bound


@pytest.mark.parametrize("type_", sorted(ENCODERS), ids=lambda t: t.name)
def test_encoders_write_the_bytes_of_stock(type_: GGMLType) -> None:
    size = TRAITS[type_].block_size
    dice = np.random.default_rng(0)
    odd = [np.zeros((1, size)), np.full((1, size), -3.0), dice.integers(-4, 5, (20, size)) / 2]
    rows = np.concatenate([dice.standard_normal((500, size)), *odd]).astype(np.float32)
    encode = getattr(_stock().base, f"quantize_row_{TRAITS[type_].name}_ref")
    encode.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    encode.restype = None
    want = np.zeros((len(rows), TRAITS[type_].type_size), np.uint8)
    encode(rows.ctypes.data, want.ctypes.data, rows.size)
    got = ENCODERS[type_](torch.from_numpy(rows)).numpy()
    # A block of nothing but zeros can be written in more than one way.
    differing = np.any(got != want, axis=1)[rows.any(axis=1)].mean()
    # IQ4_NL fits its scale by sums in another order: the last bit of a scale may differ.
    assert differing <= (0.02 if type_ == GGMLType.IQ4_NL else 0.0)
