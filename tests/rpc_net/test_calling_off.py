"""When the client of a worker that pushes leaves, nobody waits for what it has not delivered."""

import threading
from contextlib import ExitStack
from typing import Final

import pytest

from app.devices.null import NullDevice
from app.errors import DeviceLostError
from app.ggml.builder import GraphBuilder
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.courier import CourierService
from app.rpc_backend.worker import outgoing as outgoing_module
from app.rpc_backend.worker.budget import Budget
from app.rpc_backend.worker.outgoing import Address, Letter, Outgoing, letter_cost
from app.rpc_backend.worker.server import RpcServer, ServerSettings
from tests.helpers.eventually import eventually
from tests.helpers.held_device import HeldDevice
from tests.helpers.rpc_link import serving, spread_graph

LIMIT_S: Final = 60
TARGET: Final = Address("b", 7)
KEY: Final = bytes(16)


def pushed_behind_a_graph(here: RpcDevice, there: RpcDevice) -> "object":
    """Ask for a push that waits for a graph, and for what depends on it at the other worker."""
    b = GraphBuilder()
    given = b.input(GGMLType.F32, (16,), "x")
    result = b.scale(given, 2.0)
    graph = b.finish(result)
    b = GraphBuilder()
    target = b.input(GGMLType.F32, (16,), "target")
    further = b.finish(b.scale(target, 2.0))
    spread_graph(here, graph)
    spread_graph(there, further)
    here.compute(graph)
    here.push(result, there, target)
    return there.get_tensor(target, 0, 64)


@pytest.mark.parametrize("end", ["the client leaves", "the worker stops"])
def test_a_push_that_waits_for_a_graph_is_called_off(end: str) -> None:
    settings = ServerSettings(dial=CourierService(ClientSettings()))
    first = HeldDevice()
    with ExitStack() as stack:
        a, b = (stack.enter_context(serving([d], settings)) for d in (first, NullDevice()))
        stack.callback(first.gate.set)
        here, there = open_workers([f"127.0.0.1:{server.port}" for server in (a, b)])
        answer = pushed_behind_a_graph(here, there)
        first.wait_begun()
        # Whatever was sent has been read when this is answered.
        here.connection.ping()
        leave(here, a, end)
        # Without a word from the sender it would be a minute.
        with pytest.raises(DeviceLostError, match="TAKE_DELIVERY: delivery 1: it was called off"):
            answer.result(LIMIT_S)  # type: ignore[attr-defined]
        assert first.log == []
        for device in (here, there):
            device.close()


def leave(here: RpcDevice, server: RpcServer, end: str) -> None:
    if end == "the worker stops":
        server.stop()
    else:
        here.connection.close()


class Wall:
    """Couriers of which the first takes nothing until it is closed; all remember."""

    def __init__(self) -> None:
        self.told: list[tuple[int, bytes]] = []
        self.begun, self.closed = threading.Event(), threading.Event()
        self.n_dialed = 0

    def dial(self, host: str, port: int) -> "Wall":
        """Connect."""
        self.n_dialed += 1
        return self

    def deliver(self, key: bytes, sequence: int, data: bytes) -> None:
        """Wait for the end of the first connection."""
        self.begun.set()
        if not self.closed.is_set():
            assert self.closed.wait(LIMIT_S)
            raise DeviceLostError("hung up")
        self.told.append((sequence, data))

    def close(self) -> None:
        """End a connection."""
        self.closed.set()


def test_what_is_being_delivered_and_what_waits_is_called_off_in_order() -> None:
    wall = Wall()
    failures: list[Exception] = []
    outgoing = Outgoing(wall.dial)
    for number in range(3):
        outgoing.send(TARGET, Letter(KEY, number, b"x", failures.append))
    assert wall.begun.wait(LIMIT_S)
    outgoing.call_off()
    outgoing.send(TARGET, Letter(KEY, 3, b"late", failures.append))
    outgoing.send(Address("c", 7), Letter(KEY, 4, b"later", failures.append))
    outgoing.close()
    assert sorted(wall.told) == [(number, b"") for number in range(5)]
    assert [number for number, _ in wall.told if number < 4] == [0, 1, 2, 3]
    assert failures == []


def test_who_leaves_while_a_worker_is_called_delivers_no_data() -> None:
    wall = Wall()
    wall.closed.set()

    def dial(host: str, port: int) -> Wall:
        outgoing.call_off()
        return wall

    outgoing = Outgoing(dial)
    outgoing.send(TARGET, Letter(KEY, 1, b"x"))
    eventually(lambda: wall.told == [(1, b"")])
    outgoing.close()


def test_a_worker_that_cannot_be_reached_is_not_called_for_every_letter() -> None:
    wall, n_dialed = Wall(), [0]

    def dial(host: str, port: int) -> Wall:
        n_dialed[0] += 1
        if n_dialed[0] == 1:
            return wall
        raise DeviceLostError("nobody there")

    outgoing = Outgoing(dial)
    for number in range(100):
        outgoing.send(TARGET, Letter(KEY, number, b"x"))
    assert wall.begun.wait(LIMIT_S)
    outgoing.call_off()
    outgoing.close()
    assert n_dialed == [2]
    assert wall.told == []


def test_nobody_waits_for_room_when_the_client_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_module, "MAX_WAITING_BYTES", 0)
    wall, has_left = Wall(), threading.Event()
    outgoing = Outgoing(wall.dial, has_left=has_left.is_set)
    outgoing.send(TARGET, Letter(KEY, 1, b"x"))
    assert wall.begun.wait(LIMIT_S)
    # What serves the client may be the very thread that waits here.
    waiting = threading.Thread(target=outgoing.send, args=(TARGET, Letter(KEY, 2, b"y")))
    waiting.start()
    has_left.set()
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()
    outgoing.close()
    assert wall.told == [(1, b""), (2, b"")]


def test_a_letter_that_was_delivered_is_let_go() -> None:
    wall, budget = Wall(), Budget()
    wall.closed.set()
    outgoing = Outgoing(wall.dial, budget)
    before = letter_cost(1000)
    held = budget.hold(before, "a letter")
    outgoing.send(TARGET, Letter(KEY, 1, bytes(1000), held=held))
    with_letter = budget.used
    del held
    eventually(lambda: wall.told)
    eventually(lambda: budget.used <= with_letter - before)
    outgoing.close()
