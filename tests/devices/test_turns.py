"""A lock that goes to whoever has waited longest: nobody overtakes, and nobody is alone with it."""

import threading
from collections.abc import Iterator

import pytest

from app.devices.base import Device
from app.devices.registry import open_devices
from app.devices.turns import Turns
from app.errors import GraphError
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.types import GGMLType
from tests.helpers.eventually import eventually
from tests.helpers.native import native_library
from tests.helpers.rpc_link import spread_graph

LIMIT_S = 60


def test_those_who_wait_come_in_order_and_before_who_has_just_let_go() -> None:
    turns, order = Turns(), []

    def take(name: str) -> None:
        with turns:
            order.append(name)

    def start(thread: threading.Thread) -> None:
        n_before = turns.n_waiting
        thread.start()
        eventually(lambda: turns.n_waiting > n_before)

    threads = [threading.Thread(target=take, args=(name,)) for name in "abc"]
    with turns:
        for thread in threads:
            start(thread)
    take("d")
    for thread in threads:
        thread.join(LIMIT_S)
    assert order == ["a", "b", "c", "d"]


def test_one_at_a_time_has_it_and_a_failure_gives_it_back() -> None:
    turns, n_inside, most = Turns(), [0], [0]

    def work() -> None:
        for i in range(200):
            try:
                with turns:
                    n_inside[0] += 1
                    most[0] = max(most[0], n_inside[0])
                    n_inside[0] -= 1
                    if i % 3 == 0:
                        raise GraphError("oh")
            except GraphError:
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads)
    assert most == [1]
    assert turns.n_waiting == 0


@pytest.fixture(params=["native", "reference"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.param == "native":
        native_library()
    (opened,) = open_devices(["CPU"], 1, executor=request.param)
    yield opened
    opened.close()


def doubled(device: Device, n: int) -> Graph:
    b = GraphBuilder()
    graph = b.finish(b.scale(b.input(GGMLType.F32, (n,), "x"), 2.0))
    spread_graph(device, graph)
    return graph


def test_who_computes_without_pause_lets_another_in_after_the_graph_that_runs(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = device._executor  # type: ignore[attr-defined]
    run, order = type(executor)._run, []
    begun, gate = threading.Event(), threading.Event()

    def held(self: object, plan: object) -> None:
        order.append(threading.current_thread().name)
        begun.set()
        assert gate.wait(LIMIT_S)
        run(self, plan)

    monkeypatch.setattr(type(executor), "_run", held)

    def compute(graph: Graph, times: int) -> None:
        for _ in range(times):
            device.compute(graph)

    busy = threading.Thread(target=compute, args=(doubled(device, 16), 4), name="busy")
    other = threading.Thread(target=compute, args=(doubled(device, 32), 1), name="other")
    busy.start()
    assert begun.wait(LIMIT_S)
    other.start()
    eventually(lambda: executor.lock.n_waiting == 1)
    gate.set()
    for thread in (busy, other):
        thread.join(LIMIT_S)
    assert order == ["busy", "other", "busy", "busy", "busy"]
