"""Which tensors a worker is asked about before they get their places: those that a stock client
asks about, and no others.
"""

from collections.abc import Iterator

import pytest

from app.devices.null import NullDevice
from app.ggml.ops import Op
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.device import RpcDevice
from tests.helpers.rpc_link import serving, spread

MAY_EXPAND = ("FLASH_ATTN_EXT", "MUL_MAT", "MUL_MAT_ID", "CUMSUM", "ARGSORT", "TOP_K")


@pytest.fixture
def null() -> NullDevice:
    return NullDevice()


@pytest.fixture
def device(null: NullDevice) -> Iterator[RpcDevice]:
    with serving([null]) as server:
        (opened,) = open_workers([f"127.0.0.1:{server.port}"])
        yield opened
        opened.close()


def test_room_for_scratch_is_asked_for_where_a_stock_client_asks(
    device: RpcDevice, null: NullDevice
) -> None:
    asked = set()
    for op in Op:
        before = null.calls["alloc_size"]
        device.alloc_size(Tensor(GGMLType.F32, (8, 1, 1, 1), (4, 32, 32, 32), op))
        if null.calls["alloc_size"] > before:
            asked.add(op.name)
    assert asked == set(MAY_EXPAND)


def test_views_have_no_padding_of_their_own(device: RpcDevice, null: NullDevice) -> None:
    whole = new_tensor(GGMLType.Q4_0, (576, 2), "whole")
    view = Tensor(GGMLType.Q4_0, (576, 1, 1, 1), whole.nb, Op.VIEW, src=(whole,), name="view")
    view.view_src = whole
    spread(device, [whole, view])
    null.calls.clear()
    for tensor in (whole, view):
        device.init_tensor(tensor)
        device.alloc_size(tensor)
    device.synchronize()
    # The answer for the whole one is known since it got its place.
    assert (null.calls["init_tensor"], null.calls["alloc_size"]) == (1, 0)
