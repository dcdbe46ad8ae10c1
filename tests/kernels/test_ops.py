"""Every case of the table on the reference executor, against float64."""

import numpy as np
import pytest

from app.devices.base import DeviceInfo, DeviceKind
from app.devices.torch_device import TorchDevice
from tests.kernels import harness, oracle
from tests.kernels.cases import CASES


@pytest.fixture(scope="module")
def device() -> TorchDevice:
    import torch

    return TorchDevice(DeviceInfo("CPU", "test", DeviceKind.CPU), torch.device("cpu"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_equals_float64(device: TorchDevice, case: harness.Case) -> None:
    got, values, _ = harness.run(device, case)
    want = oracle.want(case, values)
    assert got.shape == want.shape
    if case.exact:
        np.testing.assert_array_equal(got, want.astype(np.float32).astype(np.float64))
    else:
        assert np.isfinite(got).all()
        assert harness.nmse(got, want) <= case.nmse
