"""A remote device against the local one behind it: every call, over real sockets, both versions."""

import random
from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest
import torch

from app.devices.base import BufferUsage, Device, DeviceInfo, DeviceKind
from app.devices.null import NullDevice
from app.devices.torch_device import TorchDevice
from app.errors import GraphError, OutOfMemoryError, UnsupportedError
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.wire.constants import KEPT_GRAPHS
from app.rpc_backend.wire.messages import GetAlignment, SizeReply
from app.rpc_backend.worker.server import RpcServer, ServerSettings
from tests.helpers.eventually import eventually
from tests.helpers.held_device import HeldDevice
from tests.helpers.rpc_link import serving, spread, spread_graph

F32: Final = GGMLType.F32
RNG: Final = np.random.default_rng(5)


def open_one(server: RpcServer) -> RpcDevice:
    (device,) = open_workers([f"127.0.0.1:{server.port}"])
    return device


@pytest.fixture(scope="module")
def local() -> Device:
    torch.set_num_threads(1)
    return TorchDevice(DeviceInfo("CPU", "test", DeviceKind.CPU), torch.device("cpu"))


@pytest.fixture(scope="module", params=[7, 8], ids=["v7", "v8"])
def server(request: pytest.FixtureRequest, local: Device) -> Iterator[RpcServer]:
    with serving([local], ServerSettings(request.param)) as running:
        yield running


@pytest.fixture
def remote(server: RpcServer) -> Iterator[RpcDevice]:
    device = open_one(server)
    yield device
    device.close()


def product(scale: float = 1.0) -> tuple[Graph, Tensor, Tensor, Tensor]:
    """scale * (w x) with w [32, 5] and x [32, 3]."""
    b = GraphBuilder()
    w, x = b.input(F32, (32, 5), "w"), b.input(F32, (32, 3), "x")
    y = b.scale(b.mul_mat(w, x), scale)
    return b.finish(y), w, x, y


def test_it_describes_itself_and_the_device_behind_it(
    remote: RpcDevice, local: Device, server: RpcServer
) -> None:
    assert remote.info.name == "RPC0"
    assert remote.info.description == f"127.0.0.1:{server.port}"
    assert remote.info.kind is DeviceKind.REMOTE
    assert remote.alignment() == local.alignment()
    assert remote.max_size() == local.max_size()
    assert remote.memory().total == local.memory().total


def test_bytes_come_back_as_they_went(remote: RpcDevice) -> None:
    x = new_tensor(GGMLType.I8, (3_000_000,), "x")
    spread(remote, [x])
    data = random.Random(1).randbytes(x.nbytes)
    remote.set_tensor(x, data)
    remote.set_tensor(x, b"abc", 1000)
    remote.memset_tensor(x, 9, 2000, 5)
    expected = bytearray(data)
    expected[1000:1003] = b"abc"
    expected[2000:2005] = b"\x09" * 5
    whole, part = remote.get_tensor(x, 0, x.nbytes), remote.get_tensor(x, 999, 5)
    assert whole.result(60) == expected
    assert part.result(60) == expected[999:1004]


def test_a_float_array_is_taken_as_its_bytes(remote: RpcDevice) -> None:
    x = new_tensor(F32, (8,), "x")
    spread(remote, [x])
    values = np.arange(8, dtype=np.float32)
    remote.set_tensor(x, values.data)
    assert remote.get_tensor(x, 0, 32).result(60) == values.tobytes()


def test_clearing_and_copying(remote: RpcDevice) -> None:
    x, y = new_tensor(F32, (8,), "x"), new_tensor(F32, (8,), "y")
    buffer = spread(remote, [x, y])
    remote.clear(buffer, 3)
    assert remote.get_tensor(y, 0, 32).result(60) == b"\x03" * 32
    remote.set_tensor(x, bytes(range(32)))
    remote.copy_tensor(x, y)
    assert remote.get_tensor(y, 0, 32).result(60) == bytes(range(32))
    with pytest.raises(GraphError, match="equal sizes"):
        remote.copy_tensor(x, new_tensor(F32, (9,), "z"))


def test_a_graph_computes_what_numpy_computes_and_again(remote: RpcDevice) -> None:
    graph, w, x, y = product(0.5)
    spread_graph(remote, graph)
    a, b = (RNG.standard_normal(shape).astype(np.float32) for shape in ((5, 32), (3, 32)))
    remote.set_tensor(w, a.tobytes())
    for _ in range(3):
        remote.set_tensor(x, b.tobytes())
        remote.compute(graph)
        result = np.frombuffer(remote.get_tensor(y, 0, y.nbytes).result(60), np.float32)
        # Products of 32 float32 terms, added up in another order.
        np.testing.assert_allclose(result.reshape(3, 5), 0.5 * b @ a.T, rtol=1e-5, atol=1e-5)
        b = b + 1


def test_a_graph_is_sent_once_and_named_afterwards(remote: RpcDevice) -> None:
    graph, *_ = product()
    spread_graph(remote, graph)
    remote.compute(graph)
    remote.synchronize()
    before = remote.connection.bytes_sent
    for _ in range(5):
        remote.compute(graph)
    remote.synchronize()
    assert remote.connection.bytes_sent - before <= 5 * (9 + 12) + 17 + 13


def test_version_7_is_sent_a_graph_again_after_another(remote: RpcDevice) -> None:
    one, *_ = product()
    other, *_ = product()
    spread_graph(remote, one)
    spread_graph(remote, other)
    sent = []
    for graph in (one, other, one, one):
        before = remote.connection.bytes_sent
        remote.compute(graph)
        remote.synchronize()
        sent.append(remote.connection.bytes_sent - before > 296)
    keeps_both = remote.connection.version.major >= 8
    assert sent == [True, True, not keeps_both, False]


def test_freeing_a_buffer_makes_the_graph_be_sent_again(remote: RpcDevice) -> None:
    graph, *_, y = product()
    spread_graph(remote, graph)
    remote.compute(graph)
    remote.free(remote.alloc(64, BufferUsage.ANY))
    remote.compute(graph)
    assert len(remote.get_tensor(y, 0, y.nbytes).result(60)) == y.nbytes


def test_both_ends_forget_after_1024_graphs() -> None:
    null = NullDevice()
    with serving([null]) as server:
        device = open_one(server)
        b = GraphBuilder()
        base = b.finish(b.scale(b.input(F32, (4,), "x"), 2.0))
        spread_graph(device, base)
        graphs = [Graph(base.nodes, uid) for uid in range(1, KEPT_GRAPHS + 2)]
        for graph in graphs:
            device.compute(graph)
        for graph in (graphs[-1], graphs[0], graphs[0], graphs[-1]):
            device.compute(graph)
        device.synchronize()
        assert null.calls["compute"] == KEPT_GRAPHS + 5
        distinct = len({id(graph) for graph in null.graphs})
        assert distinct == KEPT_GRAPHS + 2
        device.close()


def test_whatever_the_client_names_after_a_failure_is_still_kept() -> None:
    """It forgets at the failure and the worker does not, so they count differently from there."""
    device = HeldDevice()
    device.gate.set()
    with serving([device]) as server:
        client = open_one(server)
        b = GraphBuilder()
        base = b.finish(b.scale(b.input(F32, (4,), "x"), 2.0))
        spread_graph(client, base)
        graphs = [Graph(base.nodes, uid) for uid in range(1, KEPT_GRAPHS + 400)]
        for graph in graphs[:500]:
            client.compute(graph)
        client.synchronize()
        device.broken = True
        client.compute(graphs[500])
        with pytest.raises(GraphError, match="the graph broke"):
            client.synchronize()
        device.broken = False
        for graph in graphs[501:] * 2:
            client.compute(graph)
        client.synchronize()
        client.close()


def test_a_graph_refused_while_it_is_sent_is_not_counted_as_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    null = NullDevice()
    with serving([null]) as server:
        device = open_one(server)
        b = GraphBuilder()
        graph = b.finish(b.scale(b.input(F32, (4,), "x"), 2.0))
        spread_graph(device, graph)
        device.synchronize()
        connection, tell = device.connection, device.connection.tell

        def slowly(*request: object, **more: object) -> None:
            tell(*request, **more)  # type: ignore[arg-type]
            with pytest.raises(UnsupportedError):
                connection.call(GetAlignment(0), SizeReply)

        with monkeypatch.context() as patch:
            patch.setattr(null, "unsupported", lambda nodes: "not today")
            patch.setattr(connection, "tell", slowly)
            device.compute(graph)
        device.compute(graph)
        device.synchronize()
        assert null.calls["compute"] == 1
        device.close()


def test_memory_and_connection_are_given_back_in_spite_of_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = HeldDevice()
    held.gate.set()
    held.broken = True
    with serving([held]) as server:
        device = open_one(server)
        b = GraphBuilder()
        graph = b.finish(b.scale(b.input(F32, (4,), "x"), 2.0))
        spread_graph(device, graph)
        more = device.alloc(64, BufferUsage.ANY)
        device.compute(graph)
        eventually(lambda: "the graph broke" in caplog.text)
        device.free(more)
        eventually(lambda: held.calls["free"] == 1)
        device.close()
        eventually(lambda: server.n_clients == 0)
        assert held.calls["free"] == 2


def test_no_memory_is_an_error_with_the_numbers() -> None:
    with serving([NullDevice(total=1000)]) as server:
        device = open_one(server)
        with pytest.raises(OutOfMemoryError, match=r"RPC0.*2000 bytes, 1000 of 1000"):
            device.alloc(2000, BufferUsage.ANY)
        assert device.alloc(1000, BufferUsage.ANY).size == 1000
        device.close()


def quantised(ne0: int) -> Tensor:
    return new_tensor(GGMLType.Q4_0, (ne0, 2), "q")


def test_padding_is_asked_for_where_a_stock_client_asks() -> None:
    null = NullDevice()
    with serving([null]) as server:
        device = open_one(server)
        odd, even, plain = quantised(576), quantised(1024), new_tensor(F32, (7,), "f")
        for tensor in (odd, odd, even, plain):
            assert device.alloc_size(tensor) == tensor.nbytes
        spread(device, [odd, even, plain])
        for tensor in (odd, even, plain):
            device.init_tensor(tensor)
        device.synchronize()
        assert (null.calls["alloc_size"], null.calls["init_tensor"]) == (1, 1)
        graph, *_ = product()
        assert [device.alloc_size(node) for node in graph.nodes] == [60, 60]
        assert null.calls["alloc_size"] == 2
        device.close()


def test_what_needs_more_than_the_protocol_has_is_refused_by_name(remote: RpcDevice) -> None:
    b = GraphBuilder()
    wide = new_tensor(F32, (8, 1, 2), "wide")
    wide.nb = (4, 32, 1 << 32, 1 << 33)
    graph = b.finish(b.scale(wide, 1.0))
    wide.buffer = graph.nodes[0].buffer = remote.alloc(64, BufferUsage.ANY)
    with pytest.raises(GraphError, match=r"'wide'.*4 GiB"):
        remote.compute(graph)
    remote.synchronize()


def test_mistakes_are_caught_before_they_cost_the_connection(remote: RpcDevice) -> None:
    x = new_tensor(F32, (8,), "x")
    graph, w, *_ = product()
    with pytest.raises(GraphError, match=r"'x'.*expected memory on RPC0"):
        remote.set_tensor(x, bytes(4))
    with pytest.raises(GraphError, match="expected memory on RPC0"):
        remote.compute(graph)
    buffer = spread(remote, [x])
    for offset, size in ((0, 33), (32, 1), (-1, 2)):
        with pytest.raises(GraphError, match="'x'"):
            remote.set_tensor(x, bytes(size), offset)
        with pytest.raises(GraphError, match="'x'"):
            remote.get_tensor(x, offset, size)
    remote.free(buffer)
    with pytest.raises(GraphError, match="live buffer"):
        remote.free(buffer)
    with pytest.raises(GraphError, match="live buffer"):
        remote.clear(buffer, 0)
    with pytest.raises(GraphError, match="expected memory"):
        remote.get_tensor(x, 0, 4)
    assert w.buffer is None
    remote.synchronize()


def test_operations_with_function_pointers_are_not_sent(remote: RpcDevice) -> None:
    x = new_tensor(F32, (8,), "x")
    custom = Tensor(F32, x.ne, x.nb, Op.CUSTOM, Params(), (x,))
    assert "CUSTOM" in (remote.unsupported([custom]) or "")
    assert remote.unsupported(product()[0].nodes) is None


def test_an_index_out_of_range_fails_what_rests_on_it_and_nothing_else(
    server: RpcServer, caplog: pytest.LogCaptureFixture
) -> None:
    device = open_one(server)
    b = GraphBuilder()
    table, rows = b.input(F32, (8, 4), "table"), b.input(GGMLType.I32, (2,), "rows")
    result = b.get_rows(table, rows)
    graph = b.finish(result)
    spread_graph(device, graph)
    device.set_tensor(rows, np.array([0, 4], np.int32).tobytes())
    device.compute(graph)
    with pytest.raises(GraphError, match=f"127.0.0.1:{server.port}: GRAPH_COMPUTE: .*4"):
        device.get_tensor(result, 0, 4).result(60)
    device.set_tensor(rows, np.array([0, 3], np.int32).tobytes())
    device.set_tensor(table, np.arange(32, dtype=np.float32).tobytes())
    device.compute(graph)
    values = np.frombuffer(device.get_tensor(result, 0, result.nbytes).result(60), np.float32)
    assert values.tolist() == [*range(8), *range(24, 32)]
    device.close()
    assert "GRAPH_COMPUTE" in caplog.text


def test_a_view_whose_place_was_not_noted_lies_in_its_source(remote: RpcDevice) -> None:
    x = new_tensor(F32, (8,), "x")
    spread(remote, [x])
    b = GraphBuilder()
    view = b.view(x, (4,), (), 16)
    view.buffer = None
    remote.set_tensor(x, bytes(range(32)))
    assert remote.get_tensor(view, 0, 16).result(60) == bytes(range(16, 32))
