"""A worker reads on while its devices compute: who waits for what, what a failure does, how it
ends.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import pytest

from app.errors import GraphError, LlamaServeError, UnsupportedError
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.commands import command_of
from app.rpc_backend.wire.graph_codec import describe_graph
from app.rpc_backend.wire.tensor import Place, WireTensor
from app.rpc_backend.wire.worker_core import Request
from app.rpc_backend.worker import server as server_module
from app.rpc_backend.worker.lanes import MAX_JOBS, Event, Lanes, Later, Report
from app.rpc_backend.worker.server import RpcServer, bind
from app.rpc_backend.worker.session import SessionError
from tests.helpers.eventually import eventually
from tests.helpers.held_device import HeldDevice
from tests.helpers.rpc_link import MemoryLink, serving, spread_graph

F32: Final = GGMLType.F32
LIMIT_S: Final = 60
REQUEST: Final = Request(command_of(m.GraphRecompute(0, 1)), m.GraphRecompute(0, 1))


def doubled(name: str = "y") -> tuple[Graph, Tensor, Tensor]:
    """A graph of one node: 2 x [16]."""
    b = GraphBuilder()
    x = b.input(F32, (16,), "x")
    y = b.scale(x, 2.0)
    y.name = name
    return b.finish(y), x, y


def placed(device: RpcDevice, name: str = "y") -> tuple[Graph, Tensor, Tensor]:
    graph, x, y = doubled(name)
    spread_graph(device, graph)
    return graph, x, y


class Pair:
    """Two devices of one worker and their client's ends; what is held is let go at the end."""

    def __init__(self) -> None:
        self.held, self.other = HeldDevice("HELD0"), HeldDevice("HELD1")
        self.other.gate.set()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.held.gate.set()


@pytest.fixture
def remotes(pair: Pair) -> Iterator[list[RpcDevice]]:
    with serving([pair.held, pair.other]) as server:
        devices = open_workers([f"127.0.0.1:{server.port}"])
        try:
            yield devices
        finally:
            pair.held.gate.set()
            for device in devices:
                device.close()


def test_another_device_computes_while_one_is_at_work(pair: Pair, remotes: list[RpcDevice]) -> None:
    (a, b) = remotes
    (graph, *_), (other, _, y) = placed(a), placed(b, "other")
    a.compute(graph)
    pair.held.wait_begun()
    b.compute(other)
    assert b.get_tensor(y, 0, 64).result(LIMIT_S) == bytes(64)
    assert pair.other.log == ["compute other"]
    assert pair.held.log == []


def test_another_buffer_is_written_and_another_graph_checked_while_one_runs(
    pair: Pair, remotes: list[RpcDevice]
) -> None:
    a = remotes[0]
    (graph, *_), (bad, x, node) = placed(a), placed(a, "next")
    a.compute(graph)
    pair.held.wait_begun()
    a.set_tensor(x, bytes(64))
    assert a.get_tensor(x, 0, 64).result(LIMIT_S) == bytes(64)
    node.ne = (8, 1, 1, 1)
    a.compute(bad)
    with pytest.raises(GraphError, match="SCALE 'next'"):
        a.connection.ping()
        a.connection.ping()
    assert pair.held.log == ["set x"]


def test_what_a_graph_touches_waits_for_it(pair: Pair, remotes: list[RpcDevice]) -> None:
    a = remotes[0]
    graph, x, y = placed(a)
    a.compute(graph)
    a.compute(graph)
    pair.held.wait_begun()
    a.set_tensor(x, bytes(64))
    a.compute(graph)
    answer = a.get_tensor(y, 0, 64)
    assert pair.held.log == []
    assert not answer.done()
    pair.held.gate.set()
    answer.result(LIMIT_S)
    assert pair.held.log == ["compute y", "compute y", "set x", "compute y"]


def test_synchronizing_waits_for_graphs(pair: Pair, remotes: list[RpcDevice]) -> None:
    a = remotes[0]
    graph, *_ = placed(a)
    a.compute(graph)
    pair.held.wait_begun()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(a.synchronize)
        with suppress(TimeoutError):
            waiting.result(0.1)
        assert not waiting.done()
        pair.held.gate.set()
        waiting.result(LIMIT_S)
    assert pair.held.log == ["compute y"]


def test_a_graph_that_fails_is_told_to_who_waits_and_the_next_one_runs(
    pair: Pair, remotes: list[RpcDevice]
) -> None:
    a = remotes[0]
    graph, _, y = placed(a)
    pair.held.broken = True
    a.compute(graph)
    answer = a.get_tensor(y, 0, 64)
    pair.held.gate.set()
    with pytest.raises(GraphError, match="GRAPH_COMPUTE: the graph broke"):
        answer.result(LIMIT_S)
    pair.held.broken = False
    a.compute(graph)
    assert a.get_tensor(y, 0, 64).result(LIMIT_S) == bytes(64)


def test_a_graph_that_fails_is_told_before_an_unrelated_reply(
    pair: Pair, remotes: list[RpcDevice]
) -> None:
    a, b = remotes
    graph, *_ = placed(a)
    pair.held.broken = True
    a.compute(graph)
    pair.held.wait_begun()
    assert b.memory().total > 0
    pair.held.gate.set()

    def is_told() -> bool:
        try:
            b.memory()
        except GraphError as error:
            return "the graph broke" in str(error)
        return False

    eventually(is_told)
    assert b.memory().total > 0


def test_an_operation_that_a_device_cannot_run_is_refused_while_another_graph_runs(
    pair: Pair, remotes: list[RpcDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = remotes[0]
    (graph, *_), (odd, *_) = placed(a), placed(a, "odd")
    a.compute(graph)
    pair.held.wait_begun()
    monkeypatch.setattr(pair.held, "unsupported", lambda nodes: f"{nodes[0].op.name}: not here")
    a.compute(odd)
    with pytest.raises(UnsupportedError, match="GRAPH_COMPUTE: SCALE: not here"):
        a.connection.ping()
        a.connection.ping()
    pair.held.gate.set()
    a.synchronize()
    assert pair.held.log == ["compute y"]


def test_a_client_that_leaves_is_forgotten_when_its_graph_has_ended(pair: Pair) -> None:
    with serving([pair.held]) as server:
        (device,) = open_workers([f"127.0.0.1:{server.port}"])
        graph, *_ = placed(device)
        for _ in range(3):
            device.compute(graph)
        pair.held.wait_begun()
        device.connection.close()
        device.close()
        assert server.n_clients == 1
        assert len(pair.held.buffers) == 1
        pair.held.gate.set()
        eventually(lambda: not pair.held.buffers and server.n_clients == 0)


def test_a_worker_that_stops_leaves_a_running_graph_behind(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "_STOP_TIMEOUT_S", 0.1)
    server = RpcServer(bind("127.0.0.1", 0), [pair.held])
    with ThreadPoolExecutor(1) as pool:
        serving_ = pool.submit(server.serve)
        (device,) = open_workers([f"127.0.0.1:{server.port}"])
        graph, *_ = placed(device)
        device.compute(graph)
        pair.held.wait_begun()
        server.stop()
        assert serving_.result(LIMIT_S) is False
        assert "still computing, left behind" in caplog.text
        assert pair.held.buffers
        pair.held.gate.set()
        eventually(lambda: not pair.held.buffers)
        with suppress(LlamaServeError):
            device.close()


def test_a_stock_client_gets_nothing_behind_a_graph_that_failed(pair: Pair) -> None:
    pair.held.broken = True
    pair.held.gate.set()
    link = MemoryLink([pair.held])
    place = link.alloc(128)
    graph, x, y = doubled()
    at = {id(x): place.address, id(y): place.address + 64}
    message = describe_graph(graph, 0, lambda t: Place(place.handle, at[id(t)]))
    read = m.GetTensor(link.put(y, place, 64), 0, 64)
    data = b"".join(link.core.request(request)[0] for request in (message, read))
    link.session.writable()[: len(data)] = data
    answers: list[bytes] = []
    with pytest.raises(SessionError, match="GRAPH_COMPUTE: the graph broke"):
        for piece in link.session.wrote(len(data)):
            answers.append(bytes(piece))
    assert answers == []
    link.session.close()


TOUCHING: Final[dict[str, Callable[[WireTensor], tuple[m.Message, bytes]]]] = {
    "SET_TENSOR": lambda t: (m.SetTensor(t, 0, 0), bytes(64)),
    "SET_TENSOR_2D": lambda t: (m.SetTensor2D(t, 0, 4, 2, 8), bytes(8)),
    "SET_TENSOR_HASH": lambda t: (m.SetTensorHash(t, 0, 1), b""),
    "GET_TENSOR": lambda t: (m.GetTensor(t, 0, 64), b""),
    "GET_TENSOR_2D": lambda t: (m.GetTensor2D(t, 0, 4, 2, 8), b""),
    "COPY_TENSOR": lambda t: (m.CopyTensor(t, t), b""),
    "MEMSET_TENSOR": lambda t: (m.MemsetTensor(t, 0, 64, 1), b""),
    "INIT_TENSOR": lambda t: (m.InitTensor(t), b""),
    "BUFFER_CLEAR": lambda t: (m.BufferClear(t.buffer, 1), b""),
    "FREE_BUFFER": lambda t: (m.FreeBuffer(t.buffer), b""),
    "WAIT_BUFFER": lambda t: (x.WaitBuffer(t.buffer), b""),
}


@pytest.mark.parametrize("touch", TOUCHING.values(), ids=TOUCHING)
def test_every_command_that_touches_a_buffer_waits_for_its_graphs(
    pair: Pair, touch: Callable[[WireTensor], tuple[m.Message, bytes]]
) -> None:
    link = MemoryLink([pair.held])
    link.call(x.Extend(x.REVISION, bytes(32)))
    link.core.extend()
    place = link.alloc(128)
    graph, given, result = doubled()
    at = {id(given): place.address, id(result): place.address + 64}
    compute = describe_graph(graph, 0, lambda t: Place(place.handle, at[id(t)]))
    message, data = touch(link.put(given, place))
    with ThreadPoolExecutor(1) as pool:
        give(link, compute)
        pair.held.wait_begun()
        n_calls = pair.held.calls.total()
        waiting = pool.submit(give, link, message, data)
        with suppress(TimeoutError):
            waiting.result(0.05)
        assert not waiting.done()
        assert pair.held.calls.total() == n_calls
        pair.held.gate.set()
        waiting.result(LIMIT_S)
    assert pair.held.calls["compute"] == 1
    link.session.close()


def give(link: MemoryLink, message: m.Message, data: bytes = b"") -> None:
    frame = link.core.request(message, len(data))[0] + data
    link.session.writable()[: len(frame)] = frame
    for _ in link.session.wrote(len(frame)):
        pass


def test_who_waits_for_a_job_that_has_not_begun_runs_it_and_those_before() -> None:
    lanes, event, ran_in = Lanes("test"), Event(), []
    work = [lambda _, i=i: ran_in.append((i, threading.get_ident())) for i in range(3)]
    lanes.submit(REQUEST, Later(0, work[0], ()))
    lanes.submit(REQUEST, Later(0, work[1], (event,)))
    event.wait()
    assert ran_in == [(0, threading.get_ident()), (1, threading.get_ident())]
    lanes.submit(REQUEST, Later(0, work[2], ()))
    lanes.start()
    eventually(lambda: len(ran_in) == 3)
    assert ran_in[2][1] != threading.get_ident()
    lanes.close()


def test_jobs_behind_the_one_waited_for_are_not_forgotten() -> None:
    lanes, event, done = Lanes("test"), Event(), threading.Event()
    lanes.submit(REQUEST, Later(0, lambda _: None, (event,)))
    lanes.submit(REQUEST, Later(0, lambda _: done.set(), ()))
    event.wait()
    assert done.wait(LIMIT_S)
    lanes.close()


def test_a_full_lane_makes_the_reader_wait() -> None:
    lanes, gate = Lanes("test"), threading.Event()

    def held(report: Report) -> None:
        assert gate.wait(LIMIT_S)

    with ThreadPoolExecutor(1) as pool:
        for _ in range(MAX_JOBS):
            lanes.submit(REQUEST, Later(0, held, ()))
        lanes.submit(REQUEST, Later(0, held, ()))
        waiting = pool.submit(lanes.submit, REQUEST, Later(0, held, ()))
        with suppress(TimeoutError):
            waiting.result(0.1)
        assert not waiting.done()
        gate.set()
        waiting.result(LIMIT_S)
    lanes.close()


def test_closing_drops_what_has_not_begun_and_waits_for_what_has() -> None:
    lanes, gate, begun, ran = Lanes("test"), threading.Event(), threading.Event(), []

    def held(report: Report) -> None:
        begun.set()
        assert gate.wait(LIMIT_S)
        ran.append("held")

    lanes.submit(REQUEST, Later(0, held, ()))
    lanes.submit(REQUEST, Later(0, lambda _: ran.append("late"), ()))
    lanes.start()
    assert begun.wait(LIMIT_S)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(lanes.close)
        with suppress(TimeoutError):
            closing.result(0.1)
        assert not closing.done()
        gate.set()
        closing.result(LIMIT_S)
    assert ran == ["held"]


def test_a_failure_stands_before_who_waited_goes_on() -> None:
    lanes, event = Lanes("test"), Event()

    def broken(report: Report) -> None:
        raise GraphError("oh")

    lanes.submit(REQUEST, Later(0, broken, (event,)))
    event.wait()
    (failure,) = lanes.failures
    assert failure.request is REQUEST
    assert str(failure.error) == "oh"
    lanes.close()
