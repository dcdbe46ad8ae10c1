"""What kernels refuse: bad indices, unknown functions, types without a decoder."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from app.devices.base import DeviceInfo, DeviceKind
from app.devices.torch_device import TorchDevice
from app.errors import GraphError, UnsupportedError
from app.ggml.op_params import Params, RopeParams
from app.ggml.ops import Op
from app.ggml.types import GGMLType
from tests.kernels import harness
from tests.kernels.harness import Case, Source

F32, I32, I64 = GGMLType.F32, GGMLType.I32, GGMLType.I64


@pytest.fixture
def device() -> Iterator[TorchDevice]:
    device = TorchDevice(DeviceInfo("CPU", "test", DeviceKind.CPU), torch.device("cpu"))
    yield device
    device.close()


def _fixed(*values: int) -> harness.Fill:
    return lambda rng, shape: np.array(values).reshape(shape)


@pytest.mark.parametrize("bad", [-1, 9, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("type_", [F32, GGMLType.F16, GGMLType.Q4_0, GGMLType.Q6_K])
def test_get_rows_refuses_an_index_outside(device: TorchDevice, type_: GGMLType, bad: int) -> None:
    sources = (Source((256, 9), type_), Source((3,), I32, _fixed(0, bad, 1)))
    with pytest.raises(GraphError, match=rf"GET_ROWS.*{bad}.*expected 0…8"):
        harness.run(device, Case("rows", Op.GET_ROWS, sources))


@pytest.mark.parametrize("bad", [-1, 9, 2**62, -(2**63)])
@pytest.mark.parametrize("type_", [F32, GGMLType.F16, GGMLType.Q8_0])
def test_set_rows_refuses_an_index_outside(device: TorchDevice, type_: GGMLType, bad: int) -> None:
    sources = (Source((64, 2)), Source((2,), I64, _fixed(1, bad)), Source((64, 9), type_))
    with pytest.raises(GraphError, match=r"SET_ROWS.*expected 0…8"):
        harness.run(device, Case("rows", Op.SET_ROWS, sources))


def test_single_element_rows_refuse_an_index_outside(device: TorchDevice) -> None:
    sources = (Source((1, 2)), Source((2,), I64, _fixed(1, -1)), Source((1, 9)))
    with pytest.raises(GraphError, match="expected 0…8"):
        harness.run(device, Case("rows", Op.SET_ROWS, sources))


@pytest.mark.parametrize("bad", [-1, 5])
def test_experts_refuse_an_index_outside(device: TorchDevice, bad: int) -> None:
    ids = Source((2, 1), I32, _fixed(0, bad))
    with pytest.raises(GraphError, match=r"MUL_MAT_ID.*expected 0…4"):
        sources = (Source((8, 3, 5)), Source((8, 1, 1)), ids)
        harness.run(device, Case("experts", Op.MUL_MAT_ID, sources))
    with pytest.raises(GraphError, match=r"ADD_ID.*expected 0…4"):
        harness.run(device, Case("bias", Op.ADD_ID, (Source((3, 2, 1)), Source((3, 5)), ids)))


def test_top_k_finds_the_greatest_of_each_row(device: TorchDevice) -> None:
    case = Case("top", Op.TOP_K, (Source((50, 4, 2)),), ne=(7, 4, 2), type=I32)
    got, values, _ = harness.run(device, case)
    assert values[0] is not None
    best = np.sort(np.take_along_axis(values[0], got.astype(int), -1), -1)
    np.testing.assert_array_equal(best, np.sort(values[0], -1)[..., -7:])


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("n", Op.DIAG_MASK_ZERO, (Source((4,), GGMLType.F16),)), "f16"),
        (Case("n", Op.MUL_MAT, (Source((4, 2), I32, harness.below(9)), Source((4, 2)))), "I32"),
        (Case("n", Op.NORM, (Source((4, 2), GGMLType.F16),), Params.pack("f", 1e-5)), "f16"),
    ],
)
def test_unsupported_nodes_are_named_before_anything_runs(
    device: TorchDevice, case: Case, reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=f"{case.op.name} 'n'.*{reason}"):
        harness.run(device, case)


def test_supports_agrees_with_compute(device: TorchDevice) -> None:
    good = Case("fine", Op.SQR, (Source((4,)),))
    _, _, node = harness.run(device, good)
    assert device.unsupported([node]) is None
    node.op = Op.FLASH_ATTN_BACK
    reason = device.unsupported([node])
    assert reason is not None and "FLASH_ATTN_BACK 'fine'" in reason


def test_endless_rows_are_not_rotated(device: TorchDevice) -> None:
    rope = RopeParams(1 << 18, 0, 512, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0).pack()
    sources = (Source((1 << 18, 1, 1)), Source((1,), I32, harness.below(9)))
    with pytest.raises(UnsupportedError, match="131072 pairs"):
        harness.run(device, Case("rope", Op.ROPE, sources, rope))


def test_empty_frequency_factors_are_refused(device: TorchDevice) -> None:
    rope = RopeParams(8, 0, 512, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0).pack()
    sources = (Source((8, 1, 2)), Source((2,), I32, harness.below(9)), Source((4, 0)))
    with pytest.raises(GraphError, match="frequency factors"):
        harness.run(device, Case("rope", Op.ROPE, sources, rope))
