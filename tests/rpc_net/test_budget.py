"""Many clients together make a worker hold no more than one budget allows, whatever it is for."""

import weakref
from dataclasses import replace
from typing import Final

import pytest

from app.devices.base import DeviceMemory
from app.devices.null import NullDevice
from app.errors import OutOfMemoryError
from app.rpc_backend.errors import DeliveryError
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.commands import command_of
from app.rpc_backend.wire.constants import Cmd
from app.rpc_backend.wire.worker_core import Request
from app.rpc_backend.worker.budget import Budget
from app.rpc_backend.worker.lanes import Event, Lanes, Later
from app.rpc_backend.worker.mailbox import Mailboxes
from app.rpc_backend.worker.outgoing import Address, Letter, Outgoing
from app.rpc_backend.worker.session import SessionError
from tests.helpers.native import native_cpu
from tests.helpers.rpc_frames import frame
from tests.helpers.rpc_link import MemoryLink
from tests.rpc_net.test_session import graph_at

MIB: Final = 1 << 20
GRAPH_BYTES: Final = 1600


def client(device: NullDevice, budget: Budget | None = None) -> MemoryLink:
    return MemoryLink([device], budget=budget)


def strict(limit: int) -> Budget:
    """A budget of so many bytes, whatever this machine has."""
    return Budget((), limit)


def stays() -> bool:
    return False


def test_a_budget_counts_what_is_held_resized_released_and_dropped() -> None:
    budget = strict(1000)
    first, second = budget.hold(600, "one"), budget.hold(300, "another")
    with pytest.raises(OutOfMemoryError, match="a third: 200 bytes beside 900 of all clients"):
        budget.hold(200, "a third")
    first.resize(100)
    assert budget.used == 400
    with pytest.raises(OutOfMemoryError, match="one: 701 bytes"):
        first.resize(801)
    second.release()
    assert budget.used == 100
    del first
    assert budget.used == 0


def test_beyond_what_is_always_granted_the_devices_must_have_it_free() -> None:
    device = NullDevice(total=10 * MIB)
    budget = Budget([device])
    budget._granted = MIB
    held = budget.hold(MIB, "granted")
    with pytest.raises(OutOfMemoryError, match=f"expected up to {10 * MIB}"):
        budget.hold(9 * MIB + 1, "more than is free")
    held.resize(10 * MIB)


def test_graphs_that_many_clients_keep_are_bounded_together() -> None:
    device, budget = NullDevice(), strict(5 * GRAPH_BYTES)
    clients = [client(device, budget) for _ in range(3)]
    messages = [graph_at(link, link.alloc(128)) for link in clients]
    for link, message in zip(clients[:2], messages, strict=False):
        for uid in (1, 2):
            link.call(replace(message, uid=uid))
    clients[2].call(replace(messages[2], uid=1))
    with pytest.raises(SessionError, match="GRAPH_COMPUTE: graph of 2 tensors: 1600 bytes beside"):
        clients[2].call(replace(messages[2], uid=2))
    assert len(clients[2].session.state.graphs) == 0
    clients[0].call(m.GraphRecompute(0, 1))
    clients[0].session.close()
    clients[1].call(replace(messages[1], uid=3))


def test_a_job_that_is_done_does_not_keep_its_graph_for_the_buffers_that_it_touched() -> None:
    graph = NullDevice()
    here, there = Event(), Event()
    gone = weakref.ref(graph)

    def later(graph: NullDevice) -> Later:
        return Later(0, lambda _: graph.synchronize(), (here, there))

    lanes = Lanes("client")
    message = m.GraphRecompute(0, 1)
    lanes.submit(Request(command_of(message), message), later(graph))
    del graph
    assert gone() is not None
    here.wait()
    assert there.job is not None
    assert gone() is None
    lanes.close()


def test_requests_that_are_half_read_are_bounded_together() -> None:
    device, budget = NullDevice(), strict(40 * MIB)
    whole = 16 * MIB
    head = frame(Cmd.GRAPH_COMPUTE, bytes(whole))[: 4 * MIB]
    first, second = client(device, budget), client(device, budget)
    first.raw(head)
    assert budget.used >= 8 * len(head) // 2
    with pytest.raises(SessionError, match=r"a request: .* of all clients"):
        second.raw(head)
    first.session.close()
    second.session.close()
    assert budget.used == 0


def test_deliveries_that_nobody_takes_are_bounded_together() -> None:
    boxes = Mailboxes(strict(3 * MIB))
    one, another = boxes.open(60), boxes.open(60)
    one.begin(1, MIB, stays).finish()
    another.begin(1, MIB, stays).finish()
    with pytest.raises(OutOfMemoryError, match="delivery 2 of 1048576 bytes"):
        another.begin(2, MIB, stays)
    one.take(1, MIB, stays)
    another.begin(2, MIB, stays)


def test_pushes_to_many_workers_are_bounded_together() -> None:
    def dial(host: str, port: int) -> object:
        raise DeliveryError("nobody there")

    outgoing = Outgoing(dial, strict(2 * MIB))  # type: ignore[arg-type]
    for number in range(2):
        outgoing.send(Address(f"h{number}", 1), Letter(bytes(16), 1, b"", lambda _: None))
    with pytest.raises(OutOfMemoryError, match="a connection to another worker"):
        outgoing.send(Address("h2", 1), Letter(bytes(16), 1, b"", lambda _: None))
    outgoing.close()


def free_bytes(link: MemoryLink) -> int:
    reply = link.call(m.GetDeviceMemory(0))
    assert isinstance(reply, m.DeviceMemoryReply)
    return reply.free


def test_buffers_that_nobody_has_touched_are_not_free_for_another_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gib = 1 << 30
    memory = DeviceMemory(8 * gib, 16 * gib)
    monkeypatch.setattr("app.devices.native_device.host_memory", lambda: memory)
    monkeypatch.setattr("app.devices.native_device.touched_bytes", lambda: 0)
    device = native_cpu()
    one, another = MemoryLink([device]), MemoryLink([device])
    one.alloc(6 * gib)
    assert free_bytes(another) == 2 * gib
    assert another.call(m.AllocBuffer(0, 2 * gib + 1)) == m.AllocBufferReply(0, 0)
    another.alloc(2 * gib)
    assert one.call(m.AllocBuffer(0, 64)) == m.AllocBufferReply(0, 0)
    another.session.close()
    assert free_bytes(one) == 2 * gib
    one.session.close()
    device.close()


def test_what_is_held_beside_buffers_is_not_free_for_buffers() -> None:
    device, budget = NullDevice(total=10 * MIB), strict(MIB)
    link = client(device, budget)
    held = budget.hold(MIB, "a delivery")
    assert free_bytes(link) == 9 * MIB
    assert link.call(m.AllocBuffer(0, 9 * MIB + 1)) == m.AllocBufferReply(0, 0)
    held.release()
    link.alloc(10 * MIB)
