"""What the case table cannot say of recurrent operations: states that are not there, kept states
that no token reached, and steps without tokens.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from app.devices.torch_device import TorchDevice
from app.errors import GraphError
from app.ggml.graph import Graph, next_uid
from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.types import GGMLType
from tests.devices.graphs import cpu
from tests.kernels import harness
from tests.kernels.cases_recurrent import RECURRENT_CASES
from tests.kernels.harness import Case, Source


@pytest.fixture
def device() -> Iterator[TorchDevice]:
    device = cpu()
    yield device
    device.close()


def _case(name: str) -> Case:
    return next(case for case in RECURRENT_CASES if case.name == name)


@pytest.mark.parametrize("bad", [-1, 5, 2**31 - 1, -(2**31)])
def test_a_scan_refuses_a_state_that_is_not_there(device: TorchDevice, bad: int) -> None:
    case = _case("SSM_SCAN-mamba2-6")
    ids = Source((3,), GGMLType.I32, lambda rng, shape: np.array([0, bad, 1]).reshape(shape))
    with pytest.raises(GraphError, match=rf"SSM_SCAN 'SSM.*{bad}.*expected 0…4"):
        harness.run(device, replace(case, sources=(*case.sources[:6], ids)))


@pytest.mark.parametrize("name", ["SSM_SCAN-mamba2-6", "GATED_DELTA_NET-many"])
def test_kept_states_that_no_token_reached_stay_as_they_are(device: TorchDevice, name: str) -> None:
    """Run with two slots more than tokens over memory of sevens."""
    case = _case(name)
    n_tokens = 6 if case.op == Op.SSM_SCAN else 7
    short, _, _ = harness.run(device, replace(case, params=Params.pack("i", n_tokens)))
    long, _, node = harness.run(device, replace(case, params=Params.pack("i", n_tokens + 2)))
    np.testing.assert_array_equal(long.ravel()[: short.size], short.ravel())
    device.set_tensor(node, np.full(node.n_elements, 7, np.float32).tobytes())
    device.compute(Graph([node], next_uid()))
    again = harness.read(device, node)
    np.testing.assert_array_equal(again.ravel()[: short.size], short.ravel())
    assert (again.ravel()[short.size :] == 7).all()


def _without_tokens(source: Source | None) -> Source:
    """Cut [d, h, t] down to no tokens; what has no third dimension stays."""
    assert source is not None
    return replace(source, ne=(*source.ne[:2], *(0 for _ in source.ne[2:])))


@pytest.mark.parametrize("name", ["RWKV_WKV6-8", "RWKV_WKV7-8", "GATED_LINEAR_ATTN-8"])
def test_a_step_without_tokens_leaves_the_state(device: TorchDevice, name: str) -> None:
    case = _case(name)
    sources = tuple(_without_tokens(source) for source in case.sources)
    got, values, _ = harness.run(device, replace(case, sources=sources))
    state = values[-1]
    assert state is not None
    np.testing.assert_array_equal(got.ravel(), state.ravel())
