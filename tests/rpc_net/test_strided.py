"""Rectangles of a remote tensor, in one request of version 8 and in many of version 7."""

import random
from collections.abc import Iterator
from typing import Final

import pytest
import torch

from app.devices.base import DeviceInfo, DeviceKind
from app.devices.torch_device import TorchDevice
from app.errors import DeviceLostError, GraphError
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.client.strided import Pieces, get_tensor_2d, set_tensor_2d
from app.rpc_backend.worker.server import ServerSettings
from tests.helpers.rpc_link import serving, spread

N_BYTES: Final = 1_000_000
CASES: Final = [
    Pieces(2, 3, 4, 8),
    Pieces(0, 1000, 1000, 1000),
    Pieces(7, 100_000, 3, 400_000),
    Pieces(N_BYTES - 5, 5, 1, 0),
    Pieces(0, 1, 2, N_BYTES - 1),
    Pieces(5, 0, 3, 8),
    Pieces(5, 8, 0, 8),
]


@pytest.fixture(scope="module", params=[7, 8], ids=["v7", "v8"])
def device(request: pytest.FixtureRequest) -> Iterator[RpcDevice]:
    torch.set_num_threads(1)
    local = TorchDevice(DeviceInfo("CPU", "test", DeviceKind.CPU), torch.device("cpu"))
    with serving([local], ServerSettings(request.param)) as server:
        (opened,) = open_workers([f"127.0.0.1:{server.port}"])
        yield opened
        opened.close()


@pytest.fixture
def x(device: RpcDevice) -> Tensor:
    tensor = new_tensor(GGMLType.I8, (N_BYTES,), "x")
    spread(device, [tensor])
    return tensor


def expected(pieces: Pieces, data: bytes) -> list[bytes]:
    """Cut the pieces out one by one."""
    starts = [pieces.offset + i * pieces.stride for i in range(pieces.n_copies)]
    return [data[start : start + pieces.size] for start in starts]


@pytest.mark.parametrize("pieces", CASES, ids=str)
def test_reading_cuts_the_pieces_out(device: RpcDevice, x: Tensor, pieces: Pieces) -> None:
    data = random.Random(1).randbytes(N_BYTES)
    device.set_tensor(x, data)
    assert get_tensor_2d(device, x, pieces).result(60) == b"".join(expected(pieces, data))


@pytest.mark.parametrize("pieces", CASES, ids=str)
def test_writing_touches_the_pieces_and_nothing_else(
    device: RpcDevice, x: Tensor, pieces: Pieces
) -> None:
    before = bytearray(random.Random(2).randbytes(N_BYTES))
    device.set_tensor(x, bytes(before))
    data = random.Random(3).randbytes(pieces.total)
    set_tensor_2d(device, x, pieces, data)
    for i in range(pieces.n_copies):
        at = pieces.offset + i * pieces.stride
        before[at : at + pieces.size] = data[i * pieces.size : (i + 1) * pieces.size]
    assert device.get_tensor(x, 0, N_BYTES).result(60) == before


def test_one_request_in_version_8(device: RpcDevice, x: Tensor) -> None:
    connection = device.connection
    device.synchronize()
    before = connection.bytes_sent
    set_tensor_2d(device, x, Pieces(0, 1, 100, 2), bytes(100))
    device.synchronize()
    sent = connection.bytes_sent - before
    assert (sent < 1000) == (connection.version.major >= 8)


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        (Pieces(0, 4, 2, 3), "expected no overlap"),
        (Pieces(0, 4, 2, 0), "expected no overlap"),
        (Pieces(0, 4, 2, N_BYTES - 3), "bytes 0 to 1000001"),
        (Pieces(N_BYTES + 1, 0, 1, 0), "expected a range within its 1000000"),
        (Pieces(0, 1 << 40, 1, 0), "expected a range"),
        (Pieces(-1, 4, 1, 4), "expected no minus"),
        (Pieces(0, 4, -1, 4), "expected no minus"),
    ],
    ids=str,
)
def test_what_is_no_rectangle_of_the_tensor_is_not_sent(
    device: RpcDevice, x: Tensor, pieces: Pieces, reason: str
) -> None:
    before = device.connection.bytes_sent
    with pytest.raises(GraphError, match=reason):
        get_tensor_2d(device, x, pieces)
    with pytest.raises(GraphError, match=reason):
        set_tensor_2d(device, x, pieces, b"")
    assert device.connection.bytes_sent == before


def test_data_of_another_length_is_not_sent(device: RpcDevice, x: Tensor) -> None:
    with pytest.raises(GraphError, match="9 bytes of data: expected 2 times 4"):
        set_tensor_2d(device, x, Pieces(0, 4, 2, 8), bytes(9))


def test_a_lost_worker_fails_the_whole_rectangle(device: RpcDevice) -> None:
    (other,) = open_workers([device.info.description])
    tensor = new_tensor(GGMLType.I8, (N_BYTES,), "x")
    spread(other, [tensor])
    other.synchronize()
    other.connection.close()
    with pytest.raises(DeviceLostError):
        get_tensor_2d(other, tensor, Pieces(0, 4, 3, 8)).result(60)
    with pytest.raises(DeviceLostError):
        set_tensor_2d(other, tensor, Pieces(0, 4, 3, 8), bytes(12))
