"""Tensors that go straight from one worker to another: what arrives, in which order, past whom, and
how it fails.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from app.devices.base import Bytes
from app.devices.null import NullDevice
from app.errors import DeviceLostError, GraphError, LlamaServeError
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client import push as push_module
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.client.endpoint import parse_endpoint
from app.rpc_backend.client.push import meets
from app.rpc_backend.courier import CourierService, WorkerCourier
from app.rpc_backend.errors import DeliveryError
from app.rpc_backend.streams.settings import ClientTls
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire.messages import Message
from app.rpc_backend.worker.mailbox import Mailbox, Mailboxes
from app.rpc_backend.worker.outgoing import Address, Letter, Outgoing
from app.rpc_backend.worker.server import RpcServer, ServerSettings
from tests.helpers.certificates import Certificates
from tests.helpers.eventually import eventually
from tests.helpers.held_device import HeldDevice
from tests.helpers.process import free_port, own_worker
from tests.helpers.rpc_link import serving, spread, spread_graph

F32: Final = GGMLType.F32
LIMIT_S: Final = 60
SECRET: Final = b"a secret of the house"


def stays() -> bool:
    """A client that does not leave."""
    return False


class Memory(NullDevice):
    """A device that keeps the bytes of its tensors, by their places."""

    def __init__(self) -> None:
        super().__init__(total=1 << 30)
        self.bytes = bytearray(1 << 20)

    def set_tensor(self, tensor: Tensor, data: Bytes, offset: int = 0) -> None:
        """Keep a write."""
        super().set_tensor(tensor, data, offset)
        start = tensor.offset + offset
        self.bytes[start : start + len(data)] = data

    def read(self, tensor: Tensor) -> bytes:
        """What a test sees."""
        return bytes(self.bytes[tensor.offset : tensor.offset + tensor.nbytes])


def dialing(**more: object) -> ServerSettings:
    return ServerSettings(dial=CourierService(ClientSettings()), **more)  # type: ignore[arg-type]


@contextmanager
def two_workers(
    first: NullDevice, second: NullDevice, settings: ServerSettings | None = None
) -> Iterator[tuple[RpcDevice, RpcDevice, RpcServer]]:
    """A client with a device on each of two workers; the second server."""
    settings = settings or dialing()
    with serving([first], settings) as a, serving([second], settings) as b:
        ends = [f"127.0.0.1:{server.port}" for server in (a, b)]
        here, there = open_workers(ends)
        try:
            yield here, there, b
        finally:
            for device in (here, there):
                device.close()


def doubled() -> tuple[Graph, Tensor, Tensor]:
    """A graph of one node: 2 x [16]."""
    b = GraphBuilder()
    given = b.input(F32, (16,), "x")
    result = b.scale(given, 2.0)
    result.name = "y"
    return b.finish(result), given, result


def pushed_pair(here: RpcDevice, there: RpcDevice, n: int = 16) -> tuple[Tensor, Tensor]:
    source, target = new_tensor(F32, (n,), "source"), new_tensor(F32, (n,), "target")
    spread(here, [source])
    spread(there, [target])
    return source, target


def test_a_result_goes_on_to_the_next_worker_and_not_through_this_host(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    with ExitStack() as stack:
        flags = ("--secret-file", str(secret))
        ports = [stack.enter_context(own_worker(*flags))[1] for _ in range(2)]
        settings = ClientSettings(secret=x.proof_key(SECRET))
        first, second = open_workers([f"127.0.0.1:{port}" for port in ports], settings)
        values = np.random.default_rng(3).standard_normal((3000, 1000)).astype(np.float32)
        b = GraphBuilder()
        given = b.input(F32, (1000, 3000), "x")
        result = b.scale(given, 2.0)
        graph = b.finish(result)
        b = GraphBuilder()
        taken = b.input(F32, (1000, 3000), "taken")
        total = b.scale(taken, 0.25)
        further = b.finish(total)
        spread_graph(first, graph)
        spread_graph(second, further)
        first.set_tensor(given, values.tobytes())
        first.synchronize()
        connections = (first.connection, second.connection)
        before = [c.bytes_sent + c.bytes_received for c in connections]
        first.compute(graph)
        first.push(result, second, taken)
        second.compute(further)
        second.synchronize()
        moved = sum(c.bytes_sent + c.bytes_received for c in connections) - sum(before)
        answer = second.get_tensor(total, 0, total.nbytes).result(LIMIT_S)
        for device in (first, second):
            device.close()
    # Descriptions of a few tensors, nothing of the 12 MB.
    assert moved < 5000
    # Powers of two are exact.
    assert answer == (values / 2).tobytes()


def test_bytes_arrive_in_pieces_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_module, "MAX_PUSH_BYTES", 1000)
    null, memory = NullDevice(), Memory()
    with two_workers(null, memory) as (here, there, _):
        source, target = pushed_pair(here, there, 1024)
        data = np.random.default_rng(1).bytes(4096)
        monkeypatch.setattr(
            NullDevice, "get_tensor", lambda self, t, at, n: _done(data[at : at + n])
        )
        here.push(source, there, target)
        there.synchronize()
        assert memory.read(target) == data


def _done(data: bytes) -> object:
    class Done:
        def result(self) -> bytes:
            return data

    return Done()


def test_a_push_reads_behind_its_graph_and_writes_behind_and_before_others() -> None:
    first, second = HeldDevice("A"), HeldDevice("B")
    with two_workers(first, second) as (here, there, _):
        (graph, _, y), (further, given, result) = doubled(), doubled()
        spread_graph(here, graph)
        spread_graph(there, further)
        here.compute(graph)
        there.compute(further)
        here.push(y, there, given)
        there.compute(further)
        answer = there.get_tensor(result, 0, 64)
        first.wait_begun()
        second.wait_begun()
        second.gate.set()
        eventually(lambda: second.log == ["compute y"])
        assert not answer.done()
        first.gate.set()
        answer.result(LIMIT_S)
        assert first.log == ["compute y"]
        assert second.log == ["compute y", "set x", "compute y"]


@contextmanager
def a_door_that_others_cannot_reach(
    here: RpcDevice, there: RpcDevice, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """What `here` is told of the address of `there` leads nowhere."""
    nowhere, tell = free_port(), here.connection.tell

    def misled(message: Message, data: bytes = b"", **more: object) -> None:
        if isinstance(message, x.PushTensor):
            message = replaced(message, port=nowhere)
        tell(message, data, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(here.connection, "tell", misled)
        yield


def test_a_worker_that_cannot_reach_the_other_says_so_at_once_and_nobody_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = NullDevice(), NullDevice()
    with two_workers(first, second) as (here, there, _):
        source, target = pushed_pair(here, there, 64)
        monkeypatch.setattr(push_module, "MAX_PUSH_BYTES", 100)
        with a_door_that_others_cannot_reach(here, there, monkeypatch):
            here.push(source, there, target)
            # Its reader waits for the delivery as well; the limit is a minute.
            answer = there.get_tensor(target, 0, 256)
            with pytest.raises(DeviceLostError, match="TAKE_DELIVERY: delivery 1: it was called"):
                answer.result(LIMIT_S)
            # Nobody asks the sender anything.
            eventually(lambda: caplog.text.count("connection refused") > 0)
        with pytest.raises(DeviceLostError, match=r"delivery \d: .* connection refused"):
            here.synchronize()


def test_a_pair_that_has_failed_is_not_tried_again_until_one_reconnects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, memory = NullDevice(), Memory()
    with two_workers(first, memory) as (here, there, server):
        source, target = pushed_pair(here, there)
        with a_door_that_others_cannot_reach(here, there, monkeypatch):
            here.push(source, there, target)
            for device in (here, there):
                assert "delivery 1" in told(device)
        memory.bytes[:64] = b"x" * 64
        before = here.connection.bytes_received
        here.push(source, there, target)
        there.synchronize()
        assert here.connection.bytes_received - before == 8 + 64
        assert memory.read(target) == bytes(64)
        (again,) = open_workers([f"127.0.0.1:{server.port}"])
        spread(again, [target])
        before = here.connection.bytes_received
        here.push(source, again, target)
        again.synchronize()
        assert here.connection.bytes_received == before
        again.close()


def test_a_push_that_makes_no_sense_leaves_the_way_open() -> None:
    with two_workers(NullDevice(), Memory()) as (here, there, _):
        source, target = pushed_pair(here, there)
        here.push(source, there, target)
        there.synchronize()
        small = new_tensor(F32, (8,), "small")
        spread(here, [small])
        places = here.describe(small), there.describe(target)
        push_module.push(here.connection, places[0], there.connection, places[1], 64)
        assert "bytes 0 to 64" in told(here)
        with pytest.raises(DeviceLostError, match="delivery 2: it was called off"):
            there.synchronize()
        assert push_module.can_push(here.connection, there.connection)


def told(device: RpcDevice) -> str:
    """What a worker says of a request that failed, asked until it says something."""
    said: list[str] = []

    def is_told() -> bool:
        try:
            device.memory()
        except LlamaServeError as error:
            said.append(str(error))
        return bool(said)

    eventually(is_told)
    return said[0]


def test_a_wrong_key_opens_nothing() -> None:
    memory = Memory()
    with serving([memory], dialing()) as server:
        courier = WorkerCourier(parse_endpoint(f"127.0.0.1:{server.port}"), ClientSettings())
        with pytest.raises(DeviceLostError, match="no door of this worker has this key"):
            courier.deliver(bytes(16), 1, b"x" * 1000)
        courier.close()


def test_a_worker_without_a_way_to_others_says_so() -> None:
    settings = ServerSettings(delivery_timeout_s=0.2)
    with two_workers(NullDevice(), NullDevice(), settings) as (here, there, _):
        source, target = pushed_pair(here, there)
        here.push(source, there, target)
        assert "this worker does not connect to others" in told(here)


BAD_PUSHES: Final[dict[str, tuple[Callable[[x.PushTensor], x.PushTensor], str]]] = {
    "past the tensor": (lambda p: replaced(p, size=65), "bytes 0 to 65"),
    "foreign buffer": (
        lambda p: replaced(p, tensor=p.tensor._replace(buffer=99)),
        "not a buffer of this client",
    ),
    "no host": (lambda p: replaced(p, host=bytes(64)), "host b''"),
    "no name": (lambda p: replaced(p, host=b"a b".ljust(64, b"\0")), "host b'a b'"),
    "no port": (lambda p: replaced(p, port=0), "port 0"),
    "port too large": (lambda p: replaced(p, port=65536), "port 65536"),
}


def replaced(push: x.PushTensor, **fields: object) -> x.PushTensor:
    values = {name: getattr(push, name) for name in push.__dataclass_fields__} | fields
    return x.PushTensor(**values)


@pytest.mark.parametrize(("change", "reason"), BAD_PUSHES.values(), ids=BAD_PUSHES)
def test_a_push_that_makes_no_sense_is_refused(
    change: Callable[[x.PushTensor], x.PushTensor], reason: str
) -> None:
    with serving([NullDevice()], dialing()) as server:
        (device,) = open_workers([f"127.0.0.1:{server.port}"])
        source = new_tensor(F32, (16,), "x")
        spread(device, [source])
        host = b"127.0.0.1".ljust(64, b"\0")
        good = x.PushTensor(device.describe(source), 0, 64, 1, server.port, host, bytes(16))
        device.connection.tell(change(good))
        assert reason in told(device)
        device.close()


def test_a_delivery_is_taken_only_inside_a_tensor_and_behind_a_door() -> None:
    with serving([NullDevice()], dialing()) as server:
        (device,) = open_workers([f"127.0.0.1:{server.port}"])
        target = new_tensor(F32, (16,), "x")
        spread(device, [target])
        place = device.describe(target)
        device.connection.tell(x.TakeDelivery(place, 0, 64, 1))
        assert "expected OPEN_DOOR before it" in told(device)
        device.connection.next_delivery()
        device.connection.tell(x.TakeDelivery(place, 60, 5, 1))
        assert "bytes 60 to 65" in told(device)
        device.close()


def test_nobody_waits_for_a_delivery_when_the_client_has_left() -> None:
    with serving([NullDevice()], dialing()) as server:
        (device,) = open_workers([f"127.0.0.1:{server.port}"])
        target = new_tensor(F32, (16,), "x")
        spread(device, [target])
        _, number = device.connection.next_delivery()
        device.connection.tell(x.TakeDelivery(device.describe(target), 0, 64, number))
        answer = device.get_tensor(target, 0, 64)
        assert device.connection.endpoint.port == server.port
        device.connection.close()
        with pytest.raises(DeviceLostError):
            answer.result(LIMIT_S)
        # The deadline is a minute.
        eventually(lambda: server.n_clients == 0)


@pytest.mark.parametrize("has_secret", [True, False])
def test_the_way_between_workers_is_tls_where_theirs_is(
    certificates: Certificates, has_secret: bool
) -> None:
    secret = SECRET if has_secret else None
    trust = ClientTls() if has_secret else certificates.trust
    memory = Memory()
    settings = ServerSettings(
        secret=secret,
        tls=certificates.signed("127.0.0.1"),
        dial=CourierService(ClientSettings(secret=secret, tls=trust)),
    )
    with serving([NullDevice()], settings) as a, serving([memory], settings) as b:
        ends = [f"127.0.0.1:{server.port}" for server in (a, b)]
        here, there = open_workers(ends, ClientSettings(secret=secret, tls=trust))
        source, target = pushed_pair(here, there)
        memory.bytes[:64] = b"x" * 64
        here.push(source, there, target)
        there.synchronize()
        assert memory.read(target) == bytes(64)
        here.close()
        there.close()


def test_where_the_workers_cannot_meet_the_bytes_go_through_this_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, memory = NullDevice(), Memory()
    with two_workers(first, memory) as (here, there, _):
        source, target = pushed_pair(here, there)
        memory.bytes[:64] = b"x" * 64
        monkeypatch.setattr(push_module, "meets", lambda sender, receiver: False)
        before = here.connection.bytes_received
        here.push(source, there, target)
        there.synchronize()
        assert here.connection.bytes_received - before == 8 + 64
        assert memory.read(target) == bytes(64)
        with pytest.raises(GraphError, match="expected equal sizes"):
            here.push(source, there, new_tensor(F32, (17,), "longer"))


def test_a_neighbour_on_the_same_worker_is_copied_to() -> None:
    first, memory = NullDevice(), Memory()
    with serving([first, memory], dialing()) as server:
        here, there = open_workers([f"127.0.0.1:{server.port}"])
        source, target = pushed_pair(here, there)
        memory.bytes[:64] = b"x" * 64
        here.push(source, there, target)
        assert memory.read(target) == bytes(64)
        here.close()
        there.close()


@pytest.mark.parametrize(
    ("sender", "receiver", "expected"),
    [
        ("10.0.0.1", "10.0.0.2", True),
        ("127.0.0.1", "127.0.0.1:7", True),
        ("127.0.0.1", "10.0.0.2", True),
        ("10.0.0.1", "127.0.0.1", False),
        ("10.0.0.1", "localhost", False),
        ("10.0.0.1", "[::1]", False),
        ("10.0.0.1", "0.0.0.0", False),
        ("10.0.0.1", "[fe80::1%eth0]", False),
        ("gpu-box", "other-box", True),
    ],
)
def test_loopback_is_another_machine_to_a_worker_elsewhere(
    sender: str, receiver: str, expected: bool
) -> None:
    assert meets(parse_endpoint(sender), parse_endpoint(receiver)) is expected


def test_deliveries_are_taken_by_number_in_any_order() -> None:
    box = Mailbox(LIMIT_S)
    for number in (2, 1):
        incoming = box.begin(number, 4, stays)
        incoming.write(b"ab")
        incoming.write(bytes([number] * 2))
        incoming.finish()
    assert b"".join(box.take(1, 4, stays)) == b"ab\1\1"
    assert b"".join(box.take(2, 4, stays)) == b"ab\2\2"


def test_a_number_comes_once_and_with_the_right_size() -> None:
    box = Mailbox(0.05)
    box.begin(1, 4, stays).finish()
    with pytest.raises(DeliveryError, match="this number has come already"):
        box.begin(1, 4, stays)
    with pytest.raises(DeliveryError, match="4 bytes came: expected 5"):
        box.take(1, 5, stays)
    with pytest.raises(DeliveryError, match=r"did not come within 0\.05 s"):
        box.take(2, 5, stays)
    with pytest.raises(DeliveryError, match="too late"):
        box.begin(2, 5, stays)
    with pytest.raises(DeliveryError, match="expected up to"):
        box.begin(3, x.MAX_PUSH_BYTES + 1, stays)


def test_a_delivery_that_breaks_off_fails_at_once() -> None:
    box = Mailbox(LIMIT_S)
    incoming = box.begin(1, 4, stays)
    incoming.write(b"ab")
    incoming.abandon()
    with pytest.raises(DeliveryError, match="left in the middle"):
        box.take(1, 4, stays)


def test_a_full_mailbox_takes_no_more_but_what_is_waited_for() -> None:
    box = Mailbox(0.05, max_bytes=10_000)
    box.begin(1, 4000, stays).finish()
    with pytest.raises(DeliveryError, match="no room within"):
        box.begin(2, 4000, stays)
    with pytest.raises(DeliveryError, match="no room before the client left"):
        box.begin(2, 4000, lambda: True)
    patient = Mailbox(LIMIT_S, max_bytes=10_000)
    patient.begin(1, 4000, stays).finish()
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(patient.take, 2, 4000, stays)
        patient.begin(2, 4000, stays).finish()
        taking.result(LIMIT_S)


def test_closing_a_mailbox_ends_all_waiting_and_forgets_the_key() -> None:
    boxes = Mailboxes()
    box = boxes.open(60)
    incoming = box.begin(1, 100, stays)
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(box.take, 2, 4, stays)
        boxes.close(box)
        with pytest.raises(DeliveryError, match="did not come before the client left"):
            taking.result(LIMIT_S)
    incoming.write(bytes(100))
    incoming.finish()
    with pytest.raises(DeliveryError, match="no door of this worker has this key"):
        boxes.find(box.key)


class Recorder:
    """A courier that remembers; the first delivery fails."""

    def __init__(self) -> None:
        self.delivered: list[int] = []
        self.n_tries = 0
        self.n_closed = 0

    def deliver(self, key: bytes, sequence: int, data: bytes) -> None:
        """Fail once."""
        self.n_tries += 1
        if self.n_tries == 1:
            raise DeviceLostError("gone")
        self.delivered.append(sequence)

    def close(self) -> None:
        """Count."""
        self.n_closed += 1


def test_what_cannot_be_delivered_is_reported_and_the_next_one_connects_again() -> None:
    recorder, dialed = Recorder(), []
    failures: list[Exception] = []

    def dial(host: str, port: int) -> Recorder:
        dialed.append((host, port))
        return recorder

    outgoing = Outgoing(dial)
    for number in range(3):
        outgoing.send(Address("b", 7), Letter(bytes(16), number, b"x", failures.append))
    eventually(lambda: recorder.delivered == [1, 2])
    assert [str(error) for error in failures] == ["delivery 0: gone"]
    assert dialed == [("b", 7)] * 2
    outgoing.close()
    eventually(lambda: recorder.n_closed == 2)
