"""Our client on stock workers: every command that they know, and the rules that they follow
without telling.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Final

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from app.devices.base import BufferUsage
from app.errors import DeviceLostError, OutOfMemoryError
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.client.group import WorkerPair
from app.rpc_backend.client.strided import Pieces, get_tensor_2d, set_tensor_2d
from app.rpc_backend.errors import GroupError
from app.rpc_backend.wire.constants import KEPT_GRAPHS
from tests.helpers.process import free_port, own_worker
from tests.helpers.rpc_frames import stock_commands
from tests.helpers.rpc_link import spread, spread_graph
from tests.helpers.rpc_tap import tapped
from tests.helpers.stock_peers import stock_worker
from tests.helpers.weights import weight_of

F32: Final = GGMLType.F32
VERSIONS: Final = [
    pytest.param(8, marks=pytest.mark.peer_v8, id="v8"),
    pytest.param(7, marks=pytest.mark.peer_v7, id="v7"),
]


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def port(version: int) -> Iterator[int]:
    with stock_worker(version) as running_port:
        yield running_port


@pytest.fixture
def device(port: int) -> Iterator[RpcDevice]:
    (opened,) = open_workers([f"127.0.0.1:{port}"])
    yield opened
    opened.close()


def test_it_says_what_it_is(device: RpcDevice, version: int) -> None:
    assert device.connection.version == (version, 0, 0)
    assert device.alignment() == 32
    assert device.max_size() > 1 << 40
    memory = device.memory()
    assert 0 < memory.free <= memory.total


def test_bytes_come_back_as_they_went(device: RpcDevice) -> None:
    x, y = (new_tensor(GGMLType.I8, (2_000_000,), name) for name in "xy")
    buffer = spread(device, [x, y])
    data = random.Random(1).randbytes(x.nbytes)
    device.clear(buffer, 3)
    assert device.get_tensor(y, 0, 100).result(60) == b"\x03" * 100
    device.set_tensor(x, data)
    device.set_tensor(x, b"abc", 1000)
    device.memset_tensor(x, 9, 2000, 5)
    expected = bytearray(data)
    expected[1000:1003] = b"abc"
    expected[2000:2005] = b"\x09" * 5
    device.copy_tensor(x, y)
    assert device.get_tensor(y, 0, y.nbytes).result(60) == expected


def test_weights_offered_by_hash_arrive_as_bytes_where_there_is_no_cache(port: int) -> None:
    settings = ClientSettings(hash_threshold_bytes=100)
    (device,) = open_workers([f"127.0.0.1:{port}"], settings)
    x = new_tensor(F32, (1000,), "x")
    x.buffer = device.alloc(x.nbytes, BufferUsage.WEIGHTS)
    data = random.Random(3).randbytes(x.nbytes)
    device.set_weights([weight_of(x, data)])
    assert device.get_tensor(x, 0, x.nbytes).result(60) == data
    device.close()


def test_rectangles_are_cut_and_filled_as_we_think(device: RpcDevice) -> None:
    x = new_tensor(GGMLType.I8, (64,), "x")
    buffer = spread(device, [x])
    device.clear(buffer, 0)
    set_tensor_2d(device, x, Pieces(2, 3, 4, 8), b"abcdefghijkl")
    whole = device.get_tensor(x, 0, 40).result(60)
    pieces = [b"\0\0" + piece + b"\0\0\0" for piece in (b"abc", b"def", b"ghi", b"jkl")]
    assert whole == b"".join(pieces) + bytes(8)
    assert get_tensor_2d(device, x, Pieces(3, 2, 3, 8)).result(60) == b"bcefhi"
    assert get_tensor_2d(device, x, Pieces(0, 0, 3, 8)).result(60) == b""


def product(type_: GGMLType = F32) -> tuple[Graph, Tensor, Tensor, Tensor]:
    b = GraphBuilder()
    w, x = b.input(type_, (64, 5), "w"), b.input(F32, (64, 3), "x")
    y = b.scale(b.mul_mat(w, x), 0.5)
    return b.finish(y), w, x, y


def test_a_graph_computes_what_numpy_computes_and_again(device: RpcDevice) -> None:
    graph, w, x, y = product()
    spread_graph(device, graph)
    rng = np.random.default_rng(1)
    a = rng.standard_normal((5, 64), dtype=np.float32)
    device.set_tensor(w, a.tobytes())
    for _ in range(3):
        b = rng.standard_normal((3, 64), dtype=np.float32)
        device.set_tensor(x, b.tobytes())
        device.compute(graph)
        result = np.frombuffer(device.get_tensor(y, 0, y.nbytes).result(60), np.float32)
        # Sums of 64 float32 products in another order.
        np.testing.assert_allclose(result.reshape(3, 5), 0.5 * b @ a.T, rtol=1e-4, atol=1e-4)


def test_quantised_weights_with_odd_rows_are_announced_and_multiply(device: RpcDevice) -> None:
    graph, w, x, y = product(GGMLType.Q4_0)
    for tensor in (w, *graph.nodes):
        assert device.alloc_size(tensor) >= tensor.nbytes
    spread_graph(device, graph)
    device.init_tensor(w)
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((n, 64), dtype=np.float32) for n in (5, 3))
    blocks = quants.quantize(a, GGMLQuantizationType.Q4_0)
    device.set_tensor(w, blocks.tobytes())
    device.set_tensor(x, b.tobytes())
    device.compute(graph)
    result = np.frombuffer(device.get_tensor(y, 0, y.nbytes).result(60), np.float32)
    exact = 0.5 * b @ quants.dequantize(blocks, GGMLQuantizationType.Q4_0).T
    # The stock CPU rounds the activations to 8 bits: 64 terms of size 1, each off by up to 1/250.
    np.testing.assert_allclose(result.reshape(3, 5), exact, atol=0.1)


def test_a_kept_graph_is_only_named(device: RpcDevice) -> None:
    graph, *_ = product()
    spread_graph(device, graph)
    device.compute(graph)
    device.synchronize()
    before = device.connection.bytes_sent
    device.compute(graph)
    device.synchronize()
    assert device.connection.bytes_sent - before < 50


def test_two_graphs_in_turn_both_run(device: RpcDevice) -> None:
    one, two = product(), product()
    for graph, w, x, _ in (one, two):
        spread_graph(device, graph)
        device.set_tensor(w, np.ones((5, 64), np.float32).tobytes())
        device.set_tensor(x, np.full((3, 64), 2.0, np.float32).tobytes())
    for _ in range(3):
        for graph, _, _, y in (one, two):
            device.memset_tensor(y, 0, 0, y.nbytes)
            device.compute(graph)
            result = np.frombuffer(device.get_tensor(y, 0, y.nbytes).result(60), np.float32)
            np.testing.assert_array_equal(result, 64.0)


def test_freeing_a_buffer_makes_the_graph_be_sent_again(device: RpcDevice) -> None:
    graph, *_, y = product()
    spread_graph(device, graph)
    device.compute(graph)
    device.free(device.alloc(64, BufferUsage.ANY))
    device.compute(graph)
    assert len(device.get_tensor(y, 0, y.nbytes).result(60)) == y.nbytes


def test_the_graph_after_1024_makes_both_ends_forget(device: RpcDevice) -> None:
    base, *_ = product()
    spread_graph(device, base)
    graphs = [Graph(base.nodes, (1 << 40) + i) for i in range(KEPT_GRAPHS + 1)]
    for graph in graphs:
        device.compute(graph)
    # A worker that had forgotten what we only name, or a uid that it never knew, would hang up.
    for graph in (graphs[-1], graphs[0], graphs[-1], graphs[1], graphs[0]):
        device.compute(graph)
    device.synchronize()


def test_too_large_a_buffer_is_an_error_and_not_the_end(device: RpcDevice) -> None:
    with pytest.raises(OutOfMemoryError, match="RPC0"):
        device.alloc(1 << 50, BufferUsage.ANY)
    device.synchronize()


def test_a_busy_worker_is_reported_in_time(device: RpcDevice, port: int) -> None:
    device.synchronize()
    with pytest.raises(DeviceLostError, match="one at a time"):
        open_workers([f"127.0.0.1:{port}"], ClientSettings(connect_timeout_s=0.5))


def test_the_worker_is_free_again_after_close(port: int) -> None:
    for _ in range(3):
        (device,) = open_workers([f"127.0.0.1:{port}"])
        device.alloc(1 << 20, BufferUsage.ANY)
        device.close()


def test_leaving_with_replies_due_does_not_take_the_worker_down(port: int) -> None:
    for _ in range(5):
        (device,) = open_workers([f"127.0.0.1:{port}"])
        graph, *_, y = product()
        spread_graph(device, graph)
        for _ in range(20):
            device.compute(graph)
            device.get_tensor(y, 0, y.nbytes)
        device.connection.close()
    (device,) = open_workers([f"127.0.0.1:{port}"])
    device.close()


def test_every_command_is_understood(version: int) -> None:
    with ExitStack() as stack:
        ports = [stack.enter_context(stock_worker(version)) for _ in range(2)]
        taps = [stack.enter_context(tapped(port, version)) for port in ports]
        settings = ClientSettings(hash_threshold_bytes=100)
        devices = open_workers([f"127.0.0.1:{tap.port}" for tap in taps], settings)
        for device in devices:
            use_everything(device)
        if version >= 8:
            add_up(devices[0], devices[1])
        for device in devices:
            device.close()
        assert set(taps[0].seen) == stock_commands(version)


def use_everything(device: RpcDevice) -> None:
    graph, w, x, y = product(GGMLType.Q4_0)
    copy = new_tensor(F32, (64, 3), "copy")
    spread_graph(device, graph)
    device.clear(spread(device, [copy]), 0)
    w.buffer = device.alloc(w.nbytes, BufferUsage.WEIGHTS)
    w.offset = 0
    device.init_tensor(w)
    device.set_weights([weight_of(w, bytes(w.nbytes))])
    device.memset_tensor(x, 0, 0, x.nbytes)
    set_tensor_2d(device, x, Pieces(0, 4, 3, 256), np.ones(3, np.float32).tobytes())
    device.copy_tensor(x, copy)
    assert get_tensor_2d(device, copy, Pieces(0, 4, 3, 256)).result(60) == b"\0\0\x80?" * 3
    for _ in range(2):
        device.compute(graph)
    assert device.get_tensor(y, 0, y.nbytes).result(60) == bytes(y.nbytes)
    assert device.memory().free > 0
    device.free(device.alloc(64, BufferUsage.ANY))


def add_up(first: RpcDevice, second: RpcDevice) -> None:
    """Reduce on both, fewer elements than are rounded and more."""
    with closing(WorkerPair(first, second, port=free_port())) as pair:
        for n in (1000, 40_000):
            ones, twos = (np.full(n, value, np.float32) for value in (1.0, 2.0))
            tensors = [new_tensor(F32, (n,), name) for name in "ab"]
            for device, tensor, data in zip((first, second), tensors, (ones, twos), strict=True):
                spread(device, [tensor])
                device.set_tensor(tensor, data.tobytes())
            pair.all_reduce(tensors[0], tensors[1])
            for device, tensor in zip((first, second), tensors, strict=True):
                found = device.get_tensor(tensor, 0, tensor.nbytes).result(60)
                np.testing.assert_array_equal(np.frombuffer(found, np.float32), 3.0)


@pytest.mark.peer_v8
@pytest.mark.parametrize("own_rank", [0, 1])
def test_one_of_ours_and_a_stock_worker_add_up(own_rank: int) -> None:
    with stock_worker(8) as stock, own_worker() as (_, own):
        devices = open_workers([f"127.0.0.1:{port}" for port in (own, stock)])
        add_up(devices[own_rank], devices[1 - own_rank])
        # The group was left properly, so that there may be another.
        add_up(devices[1 - own_rank], devices[own_rank])
        for device in devices:
            device.close()


@pytest.mark.peer_v8
def test_a_stock_worker_that_waits_for_a_refusing_one_is_let_go() -> None:
    with stock_worker(8) as stock, own_worker() as (_, own), own_worker() as (_, other):
        devices = open_workers([f"127.0.0.1:{port}" for port in (stock, own, other)])
        with (
            closing(WorkerPair(devices[1], devices[2], port=free_port())),
            pytest.raises(GroupError, match=r"RPC1 .* as rank 1: it refused"),
        ):
            WorkerPair(devices[0], devices[1], port=free_port())
        # It would wait for rank 1 for ever.
        assert devices[0].memory().total > 0
        for device in devices:
            device.close()
