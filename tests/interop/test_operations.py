"""Operations on stock workers, told by our client, against our own reference executor: the same
numbers, parameters and layouts mean the same at both ends of the wire, in both versions.
"""

from collections.abc import Iterator
from functools import cache

import pytest

from app.devices.torch_device import TorchDevice
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.device import RpcDevice
from tests.devices.graphs import cpu
from tests.helpers.stock_peers import stock_worker
from tests.kernels import harness
from tests.kernels.cases_image import IMAGE_CASES
from tests.kernels.cases_recurrent import RECURRENT_CASES
from tests.kernels.harness import Case

NMSE = 1e-6
VERSIONS = [
    pytest.param(8, marks=pytest.mark.peer_v8, id="v8"),
    pytest.param(7, marks=pytest.mark.peer_v7, id="v7"),
]


@cache
def _reference() -> TorchDevice:
    return cpu()


@pytest.fixture(scope="module", params=VERSIONS)
def worker(request: pytest.FixtureRequest) -> Iterator[RpcDevice]:
    with stock_worker(request.param) as port:
        (device,) = open_workers([f"127.0.0.1:{port}"])
        yield device
        device.close()


@pytest.mark.parametrize("case", [*RECURRENT_CASES, *IMAGE_CASES], ids=lambda case: case.name)
def test_a_stock_worker_agrees(worker: RpcDevice, case: Case) -> None:
    got, _, _ = harness.run(worker, case)
    want, _, _ = harness.run(_reference(), case)
    assert harness.nmse(got, want) < NMSE
