"""Two workers add a tensor up between themselves: what comes out, who may join, and that nobody
waits for ever.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import numpy as np
import pytest
import torch

from app.devices.base import Device, DeviceInfo, DeviceKind
from app.devices.null import NullDevice
from app.devices.torch_device import TorchDevice
from app.errors import DeviceLostError, GraphError
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.client.group import WorkerPair
from app.rpc_backend.errors import GroupError, LocalProtocolError
from app.rpc_backend.wire import messages as m
from app.rpc_backend.worker.all_reduce import MAX_WIRE_BYTES, ROUNDED_FROM, Groups
from app.rpc_backend.worker.link import LinkLimits
from app.rpc_backend.worker.server import ServerSettings
from app.rpc_backend.worker.session import SessionError
from tests.helpers.eventually import eventually
from tests.helpers.process import free_port
from tests.helpers.rpc_frames import u32
from tests.helpers.rpc_link import MemoryLink, serving, spread
from tests.helpers.rpc_tap import tapped

F32: Final = GGMLType.F32
BRIEF: Final = LinkLimits(2, 2, 2)
LONG: Final = LinkLimits(60, 60, 60)
PATIENT: Final = ServerSettings(link_limits=LONG)
NOWHERE: Final = b"127.0.0.1".ljust(64, b"\0")


def cpu() -> Device:
    torch.set_num_threads(1)
    return TorchDevice(DeviceInfo("CPU", "test", DeviceKind.CPU), torch.device("cpu"))


def opened(stack: ExitStack, settings: ServerSettings) -> RpcDevice:
    server = stack.enter_context(serving([cpu()], settings))
    (device,) = open_workers([f"127.0.0.1:{server.port}"])
    stack.callback(device.close)
    return device


@pytest.fixture
def workers() -> Iterator[tuple[RpcDevice, RpcDevice]]:
    with ExitStack() as stack:
        yield opened(stack, PATIENT), opened(stack, PATIENT)


@pytest.fixture
def pair(workers: tuple[RpcDevice, RpcDevice]) -> Iterator[WorkerPair]:
    made = WorkerPair(*workers, port=free_port())
    yield made
    made.close()


def on_both(
    workers: tuple[RpcDevice, RpcDevice], data: tuple[bytes, bytes], type_: GGMLType, n: int
) -> tuple[Tensor, Tensor]:
    tensors = new_tensor(type_, (n,), "a"), new_tensor(type_, (n,), "b")
    for device, tensor, values in zip(workers, tensors, data, strict=True):
        spread(device, [tensor])
        device.set_tensor(tensor, values)
    return tensors


def results(
    workers: tuple[RpcDevice, RpcDevice], tensors: tuple[Tensor, Tensor]
) -> tuple[bytes, bytes]:
    first, second = (
        device.get_tensor(tensor, 0, tensor.nbytes)
        for device, tensor in zip(workers, tensors, strict=True)
    )
    return first.result(60), second.result(60)


def values(n: int, seed: int) -> torch.Tensor:
    """Finite float32 numbers of all sizes."""
    bits = np.random.default_rng(seed).integers(0, 1 << 32, n, np.uint32)
    bits[(bits & 0x7F000000) == 0x7F000000] &= 0x3FFFFFFF
    return torch.from_numpy(bits.view(np.float32).copy())


@pytest.mark.parametrize("n", [1, 576, ROUNDED_FROM - 1])
def test_small_tensors_are_added_exactly(
    workers: tuple[RpcDevice, RpcDevice], pair: WorkerPair, n: int
) -> None:
    a, b = values(n, 1), values(n, 2)
    tensors = on_both(workers, (a.numpy().tobytes(), b.numpy().tobytes()), F32, n)
    pair.all_reduce(*tensors)
    expected = (a + b).numpy().tobytes()
    assert results(workers, tensors) == (expected, expected)


# Two pieces and a bit more: nothing of it fits into the sockets' buffers.
@pytest.mark.parametrize("n", [ROUNDED_FROM, 2_500_001])
def test_each_rank_adds_the_rounded_values_of_the_other_to_its_own_exact_ones(
    workers: tuple[RpcDevice, RpcDevice], pair: WorkerPair, n: int
) -> None:
    a, b = values(n, 3), values(n, 4)
    tensors = on_both(workers, (a.numpy().tobytes(), b.numpy().tobytes()), F32, n)
    pair.all_reduce(*tensors)
    first, second = results(workers, tensors)
    assert first == (a + b.bfloat16().float()).numpy().tobytes()
    assert second == (b + a.bfloat16().float()).numpy().tobytes()


@pytest.mark.parametrize(
    ("type_", "dtype"), [(GGMLType.F16, torch.float16), (GGMLType.BF16, torch.bfloat16)]
)
def test_half_floats_travel_as_they_are(
    workers: tuple[RpcDevice, RpcDevice],
    pair: WorkerPair,
    type_: GGMLType,
    dtype: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(40_000, generator=generator).to(dtype) for _ in range(2))
    data = tuple(x.view(torch.int16).numpy().tobytes() for x in (a, b))
    tensors = on_both(workers, (data[0], data[1]), type_, 40_000)
    pair.all_reduce(*tensors)
    expected = (a.float() + b.float()).to(dtype).view(torch.int16).numpy().tobytes()
    assert results(workers, tensors) == (expected, expected)


def test_infinities_and_nans_stay_what_they_are(
    workers: tuple[RpcDevice, RpcDevice], pair: WorkerPair
) -> None:
    special = torch.tensor([np.inf, -np.inf, np.nan, -0.0, 1e-45, 3.4e38, 1.0, -np.inf])
    a = special.repeat(ROUNDED_FROM // 8)
    # A NaN whose payload is all in the half that is cut off.
    a.view(torch.int32)[2] = 0x7F800001
    b = torch.zeros_like(a)
    tensors = on_both(workers, (a.numpy().tobytes(), b.numpy().tobytes()), F32, len(a))
    pair.all_reduce(*tensors)
    second = np.frombuffer(results(workers, tensors)[1], np.float32)
    np.testing.assert_array_equal(second, a.bfloat16().float().numpy())


def test_one_after_the_other_in_the_order_of_asking(
    workers: tuple[RpcDevice, RpcDevice], pair: WorkerPair
) -> None:
    one = np.ones(1000, np.float32).tobytes()
    tensors = on_both(workers, (one, one), F32, 1000)
    for _ in range(10):
        pair.all_reduce(*tensors)
    first, _ = results(workers, tensors)
    assert np.frombuffer(first, np.float32)[0] == 1024.0


def test_a_pair_that_was_closed_can_be_made_again(workers: tuple[RpcDevice, RpcDevice]) -> None:
    port = free_port()
    for _ in range(3):
        pair = WorkerPair(*workers, port=port)
        pair.close()
        with pytest.raises(GroupError, match="no pair"):
            pair.all_reduce(new_tensor(F32, (1,)), new_tensor(F32, (1,)))


def test_a_second_group_of_a_device_is_refused_and_the_first_lives(
    workers: tuple[RpcDevice, RpcDevice], pair: WorkerPair
) -> None:
    with pytest.raises(GroupError, match=r"RPC0 .* as rank 0: it refused; RPC0 .* as rank 1"):
        WorkerPair(*workers, port=free_port())


def test_the_client_refuses_what_cannot_be_added(
    workers: tuple[RpcDevice, RpcDevice], pair: WorkerPair
) -> None:
    with pytest.raises(GraphError, match=r"'a' F32 \[4, 1, 1, 1\] with 'b' F32 \[5, 1, 1, 1\]"):
        pair.all_reduce(new_tensor(F32, (4,), "a"), new_tensor(F32, (5,), "b"))


def test_a_worker_of_version_7_cannot_join_and_nobody_waits(
    workers: tuple[RpcDevice, RpcDevice],
) -> None:
    with ExitStack() as stack:
        old = opened(stack, ServerSettings(7))
        with pytest.raises(LocalProtocolError, match="version 7"):
            WorkerPair(workers[0], old)
    workers[0].synchronize()


def test_two_devices_of_one_worker_are_refused() -> None:
    with serving([NullDevice("A"), NullDevice("B")]) as server:
        devices = open_workers([f"127.0.0.1:{server.port}"])
        with pytest.raises(GroupError, match="share a connection"):
            WorkerPair(devices[0], devices[1])
        for device in devices:
            device.close()


def test_a_worker_that_cannot_listen_is_named() -> None:
    with ExitStack() as stack:
        hasty = ServerSettings(link_limits=BRIEF)
        workers = opened(stack, hasty), opened(stack, hasty)
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        with pytest.raises(GroupError, match="as rank 0: it refused"):
            WorkerPair(*workers, port=taken.getsockname()[1])
        for device in workers:
            device.synchronize()


@pytest.mark.parametrize(
    "message",
    [
        m.CommInit(0, 0, 1, 1000, NOWHERE),
        m.CommInit(0, 0, 3, 1000, NOWHERE),
        m.CommInit(0, 2, 2, 1000, NOWHERE),
        m.CommInit(0, 0, 2, 0, NOWHERE),
        m.CommInit(0, 1, 2, 1 << 20, NOWHERE),
    ],
)
def test_groups_other_than_two_ranks_on_a_port_are_refused(message: m.CommInit) -> None:
    link = MemoryLink([NullDevice()])
    assert link.call(message) == m.FlagReply(0)
    assert link.call(m.DeviceCount()) == m.DeviceCountReply(1)


@contextmanager
def linked(limits: LinkLimits) -> Iterator[MemoryLink]:
    made = MemoryLink([NullDevice("A"), NullDevice("B")])
    made.session.state.groups = Groups("127.0.0.1", limits)
    yield made
    made.session.close()


@pytest.fixture
def link() -> Iterator[MemoryLink]:
    with linked(LONG) as made:
        yield made


@pytest.fixture
def hasty() -> Iterator[MemoryLink]:
    """A worker that soon gives up."""
    with linked(BRIEF) as made:
        yield made


@pytest.mark.parametrize("rank", [0, 1])
def test_a_peer_that_never_comes_is_given_up(hasty: MemoryLink, rank: int) -> None:
    assert hasty.call(m.CommInit(0, rank, 2, free_port(), NOWHERE)) == m.FlagReply(0)


def test_a_host_that_does_not_exist_is_given_up(hasty: MemoryLink) -> None:
    message = m.CommInit(0, 1, 2, 1000, b"\xff\xfe no host".ljust(64, b"\0"))
    assert hasty.call(message) == m.FlagReply(0)


def test_a_name_service_that_is_silent_is_given_up(
    hasty: MemoryLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    over = threading.Event()

    def silent(*args: object, **kwargs: object) -> list[object]:
        over.wait(300)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    assert hasty.call(m.CommInit(0, 1, 2, 1000, b"gpu-box".ljust(64, b"\0"))) == m.FlagReply(0)
    over.set()
    assert "rank 0 at gpu-box port 1000: no answer from the name service" in caplog.text


def joined_by_hand(link: MemoryLink, said: bytes) -> socket.socket:
    """Make the worker rank 1 of a rank 0 that says these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[socket.socket] = []

        def rank_0() -> None:
            sock, _ = listener.accept()
            sock.sendall(said)
            accepted.append(sock)

        thread = threading.Thread(target=rank_0)
        thread.start()
        port = listener.getsockname()[1]
        reply = link.call(m.CommInit(0, 1, 2, port, NOWHERE))
        thread.join()
    assert reply == m.FlagReply(int(len(said) >= 24))
    return accepted[0]


def test_a_peer_that_says_too_little_is_no_peer(hasty: MemoryLink) -> None:
    joined_by_hand(hasty, bytes(23)).close()


def test_rank_1_says_nothing_before_it_has_heard_rank_0(hasty: MemoryLink) -> None:
    with joined_by_hand(hasty, bytes(24)) as peer:
        with pytest.raises(SessionError, match="nothing within"):
            all_reduce(hasty)
        assert peer.recv(1000) == bytes(24)
        assert peer.recv(1) == b""


def test_the_first_worker_listens_1000_above_its_port_and_the_second_hears_its_name() -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(serving([NullDevice()])) for _ in range(2)]
        taps = [stack.enter_context(tapped(server.port, 8)) for server in servers]
        devices = open_workers([f"127.0.0.1:{tap.port}" for tap in taps])
        # Whether that port is free does not matter to what is said.
        with suppress(GroupError):
            WorkerPair(devices[0], devices[1]).close()
        for device in devices:
            device.close()
    for rank, tap in enumerate(taps):
        ((request, _),) = tap.seen["COMM_INIT"]
        assert request[9:] == u32(0, rank, 2, taps[0].port + 1000) + NOWHERE


def test_a_peer_with_another_transport_is_met_on_tcp(
    link: MemoryLink, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with joined_by_hand(link, bytes(range(24))) as peer:
        assert peer.recv(100) == bytes(24)
    assert "rank 0 at 127.0.0.1 offers RDMA" in caplog.text


def all_reduce(link: MemoryLink, type_: GGMLType = F32, n: int = 100) -> None:
    tensor = new_tensor(type_, (n,), "x")
    link.call(m.CommAllreduce(0, link.put(tensor, link.alloc(tensor.nbytes))))


def test_a_peer_that_stalls_ends_the_group(hasty: MemoryLink) -> None:
    with joined_by_hand(hasty, bytes(24) + bytes(399)):
        with pytest.raises(SessionError, match=r"rank 0 at 127\.0\.0\.1: nothing within 2 s"):
            all_reduce(hasty)
        assert "no group" in refusal(hasty)


def test_a_peer_that_leaves_ends_the_group(link: MemoryLink) -> None:
    joined_by_hand(link, bytes(24)).close()
    with pytest.raises(SessionError, match=r"closed the connection, 400 bytes missing|broke"):
        all_reduce(link)


def refusal(link: MemoryLink, type_: GGMLType = F32, n: int = 100) -> str:
    with pytest.raises(SessionError) as caught:
        all_reduce(link, type_, n)
    return str(caught.value)


def test_without_a_group_nothing_is_added(link: MemoryLink) -> None:
    assert "device 0 is in no group" in refusal(link)


def test_a_broken_group_makes_room_for_a_new_one(link: MemoryLink) -> None:
    joined_by_hand(link, bytes(24)).close()
    joined_by_hand(link, bytes(24)).close()


def test_what_cannot_be_added_is_refused_before_a_byte_moves(link: MemoryLink) -> None:
    with joined_by_hand(link, bytes(24)):
        assert "Q4_0: expected F32" in refusal(link, GGMLType.Q4_0, 64)
        assert "I32: expected F32" in refusal(link, GGMLType.I32)
        assert f"expected up to {MAX_WIRE_BYTES}" in refusal(link, F32, MAX_WIRE_BYTES // 2 + 1)
        gaps = new_tensor(F32, (4, 4), "x")
        gaps.nb = (4, 32, 128, 128)
        wire = link.put(gaps, link.alloc(1000))
        with pytest.raises(SessionError, match="expected F32, F16, BF16 without gaps"):
            link.call(m.CommAllreduce(0, wire))
        outside = link.put(new_tensor(F32, (100,)), link.alloc(64))
        with pytest.raises(SessionError, match="expected a range"):
            link.call(m.CommAllreduce(0, outside))


def test_memory_of_another_device_is_refused(link: MemoryLink) -> None:
    with joined_by_hand(link, bytes(24)):
        wire = link.put(new_tensor(F32, (4,)), link.alloc(16, device=1))
        with pytest.raises(SessionError, match="expected memory on device 0"):
            link.call(m.CommAllreduce(0, wire))


def test_a_client_that_leaves_closes_its_group(link: MemoryLink) -> None:
    with joined_by_hand(link, bytes(24)) as peer:
        assert peer.recv(24) == bytes(24)
        link.session.close()
        assert peer.recv(1) == b""


def test_nobody_waits_for_the_sake_of_a_client_that_has_left() -> None:
    port = free_port()
    with serving([NullDevice()], PATIENT) as server:
        (device,) = open_workers([f"127.0.0.1:{server.port}"])
        waiting = device.connection.ask(m.CommInit(0, 0, 2, port, NOWHERE), m.FlagReply)
        device.connection.close()
        with pytest.raises(DeviceLostError):
            waiting.result(60)
        eventually(lambda: server.n_clients == 0)
