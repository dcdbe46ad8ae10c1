"""A connection that goes wrong fails everybody who waits, with the cause, and in time."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.errors import DeviceLostError
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.client.pulse import TransportLimits
from app.rpc_backend.client.transport import Transport
from tests.helpers.fake_worker import Script, fake_worker, introduce, read, wait_for_end
from tests.helpers.rpc_frames import response, u64

PATIENT = ClientSettings(connect_timeout_s=60, limits=TransportLimits(60))
HASTY_S = 1.5
HASTY = ClientSettings(
    connect_timeout_s=60, limits=TransportLimits(HASTY_S, max_queued_bytes=1 << 20)
)


@contextmanager
def device_of(script: Script, settings: ClientSettings = PATIENT) -> Iterator[RpcDevice]:
    """A device whose worker introduces itself and then follows a script."""

    def run(sock: socket.socket) -> None:
        introduce(sock)
        script(sock)

    with fake_worker(run) as endpoint:
        (device,) = open_workers([endpoint], settings)
        try:
            yield device
        finally:
            device.close()


def give_buffer(sock: socket.socket, size: int = 1 << 30, base: int = 1 << 40) -> None:
    """Answer ALLOC_BUFFER and BUFFER_GET_BASE."""
    read(sock, 21)
    sock.sendall(response(u64(5, size)))
    read(sock, 17)
    sock.sendall(response(u64(base)))


def tensor_in(device: RpcDevice, n: int = 1 << 28) -> Tensor:
    """A tensor of n bytes in a buffer of its own."""
    from app.devices.base import BufferUsage

    tensor = new_tensor(GGMLType.I8, (n,), "x")
    tensor.buffer = device.alloc(1 << 30, BufferUsage.ANY)
    return tensor


def test_a_worker_that_does_not_answer_is_given_up() -> None:
    def script(sock: socket.socket) -> None:
        give_buffer(sock)
        wait_for_end(sock)

    with device_of(script, HASTY) as device:
        x = tensor_in(device)
        first, second = device.get_tensor(x, 0, 1000), device.get_tensor(x, 0, 7)
        with pytest.raises(DeviceLostError) as caught:
            first.result(60)
        text = str(caught.value)
        named = (device.info.description, "does not answer, for 1.5 s", "GET_TENSOR", "1000 bytes")
        for part in named:
            assert part in text
        with pytest.raises(DeviceLostError, match="does not answer"):
            second.result(60)
        with pytest.raises(DeviceLostError, match="does not answer"):
            device.memory()


def test_slow_answers_are_no_silence() -> None:
    def script(sock: socket.socket) -> None:
        give_buffer(sock)
        for _ in range(6):
            read(sock, 9 + 312)
            threading.Event().wait(HASTY_S / 5)
            sock.sendall(response(b"abcd"))
        wait_for_end(sock)

    with device_of(script, HASTY) as device:
        x = tensor_in(device)
        futures = [device.get_tensor(x, 0, 4) for _ in range(6)]
        assert [future.result(60) for future in futures] == [b"abcd"] * 6


def test_a_worker_that_does_not_read_is_given_up() -> None:
    def script(sock: socket.socket) -> None:
        give_buffer(sock)
        stop.wait(60)

    stop = threading.Event()
    with device_of(script, HASTY) as device:
        x = tensor_in(device)
        with pytest.raises(DeviceLostError, match="does not take the bytes"):
            for _ in range(64):
                device.set_tensor(x, bytes(1 << 20))
        stop.set()


def test_a_worker_that_dies_in_a_reply_names_what_was_lost() -> None:
    def script(sock: socket.socket) -> None:
        give_buffer(sock)
        read(sock, 9 + 312)
        sock.sendall(u64(1000) + bytes(10))

    with device_of(script) as device:
        future = device.get_tensor(tensor_in(device), 0, 1000)
        with pytest.raises(
            DeviceLostError, match=r"(closed the connection|connection broke).*GET_TENSOR"
        ):
            future.result(60)


def test_a_reply_of_the_wrong_size_ends_the_connection() -> None:
    def script(sock: socket.socket) -> None:
        give_buffer(sock)
        read(sock, 9 + 312)
        sock.sendall(u64(1 << 63))
        wait_for_end(sock)

    with device_of(script) as device:
        future = device.get_tensor(tensor_in(device), 0, 1000)
        with pytest.raises(DeviceLostError, match=r"broke the protocol.*9223372036854775808"):
            future.result(60)


@pytest.mark.parametrize(
    ("size", "base"), [(1 << 29, 1 << 40), (1 << 30, 0), (1 << 30, (1 << 64) - (1 << 30) + 1)]
)
def test_a_buffer_that_cannot_be_is_refused(size: int, base: int) -> None:
    def script(sock: socket.socket) -> None:
        give_buffer(sock, size, base)
        wait_for_end(sock)

    with device_of(script) as device:
        with pytest.raises(DeviceLostError, match=f"buffer of {size} bytes at {base:#x}: expected"):
            tensor_in(device)
        assert device.connection.cause is None


def test_a_buffer_may_end_where_addresses_do() -> None:
    def script(sock: socket.socket) -> None:
        give_buffer(sock, base=(1 << 64) - (1 << 30))
        read(sock, 9 + 312)
        sock.sendall(response(b"abcd"))
        wait_for_end(sock)

    with device_of(script) as device:
        x = tensor_in(device)
        x.offset = (1 << 30) - 4
        assert device.get_tensor(x, 0, 4).result(60) == b"abcd"


def test_closing_fails_whoever_still_waits() -> None:
    def script(sock: socket.socket) -> None:
        give_buffer(sock)
        wait_for_end(sock)

    with device_of(script) as device:
        future = device.get_tensor(tensor_in(device), 0, 10)
        device.close()
        with pytest.raises(DeviceLostError, match="closed by this side"):
            future.result(60)
        with pytest.raises(DeviceLostError):
            device.synchronize()


def test_uploads_wait_when_the_queue_is_full_and_end_with_the_connection() -> None:
    def script(sock: socket.socket) -> None:
        give_buffer(sock)
        stop.wait(60)

    stop, caught = threading.Event(), []
    with device_of(script, HASTY) as device:
        x = tensor_in(device)
        sent = 0

        def upload() -> None:
            nonlocal sent
            try:
                while True:
                    device.set_tensor(x, bytes(1 << 20))
                    sent += 1
            except DeviceLostError as error:
                caught.append(str(error))

        thread = threading.Thread(target=upload)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        # What the sockets' own buffers take is not ours to bound; 64 MiB is far more than that.
        assert sent < 64
        assert "not yet sent" in caught[0]
        stop.set()


def test_closing_does_not_wait_for_a_worker_that_takes_nothing() -> None:
    def script(sock: socket.socket) -> None:
        give_buffer(sock)
        stop.wait(60)

    stop = threading.Event()
    with device_of(script, ClientSettings(limits=TransportLimits(max_queued_bytes=1))) as device:
        device.set_tensor(tensor_in(device), bytes(64 << 20))
        thread = threading.Thread(target=device.close, daemon=True)
        thread.start()
        thread.join(60)
        was_stuck = thread.is_alive()
        stop.set()
    assert not was_stuck


def test_data_may_be_changed_as_soon_as_it_is_handed_over() -> None:
    received = bytearray()
    size, header = 8 << 20, 9 + 305

    def script(sock: socket.socket) -> None:
        give_buffer(sock)
        go.wait(60)
        while len(received) < header + size:
            received.extend(sock.recv(1 << 20))
        done.set()
        wait_for_end(sock)

    go, done = threading.Event(), threading.Event()
    with device_of(script) as device:
        x = tensor_in(device)
        data = bytearray(b"\x07") * size
        device.set_tensor(x, data)
        data[:] = bytes(size)
        go.set()
        assert done.wait(60)
        assert received[header:] == b"\x07" * size


def test_small_inputs_leave_with_the_request_that_needs_them() -> None:
    sizes: list[int] = []

    def script(sock: socket.socket) -> None:
        give_buffer(sock)
        data = sock.recv(1 << 16)
        sizes.append(len(data))
        read(sock, 4 * (9 + 305 + 8) + 9 + 312 - len(data))
        sock.sendall(response(b"abcd"))
        wait_for_end(sock)

    with device_of(script) as device:
        x = tensor_in(device)
        for _ in range(4):
            device.set_tensor(x, bytes(8))
        assert device.get_tensor(x, 0, 4).result(60) == b"abcd"
    assert sizes == [4 * (9 + 305 + 8) + 9 + 312]


def test_large_parts_arrive_whole_and_in_order() -> None:
    sizes = [24 << 20, 10, (1 << 20) + 1, 1 << 20, 7]
    header = 9 + 305
    received = bytearray()

    def script(sock: socket.socket) -> None:
        give_buffer(sock)
        go.wait(60)
        while len(received) < sum(sizes) + header * len(sizes):
            received.extend(sock.recv(1 << 16))
        done.set()
        wait_for_end(sock)

    go, done = threading.Event(), threading.Event()
    with device_of(script, ClientSettings()) as device:
        x = tensor_in(device)
        for i, size in enumerate(sizes):
            device.set_tensor(x, bytes([i + 1]) * size)
        device.get_tensor(x, 0, 4)
        go.set()
        assert done.wait(60)
    for i, size in enumerate(sizes):
        assert received[header : header + size] == bytes([i + 1]) * size
        del received[: header + size]


def test_who_asks_while_a_broken_protocol_is_noticed_is_told_of_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def script(sock: socket.socket) -> None:
        give_buffer(sock)
        read(sock, 9 + 312)
        sock.sendall(u64(1 << 63))
        wait_for_end(sock)

    noticed, asked = threading.Event(), threading.Event()
    fail = Transport.fail

    def slow_fail(transport: Transport, cause: str) -> None:
        noticed.set()
        assert asked.wait(60)
        fail(transport, cause)

    with device_of(script) as device:
        tensor = tensor_in(device)
        monkeypatch.setattr(Transport, "fail", slow_fail)
        device.get_tensor(tensor, 0, 1000)
        assert noticed.wait(60)
        try:
            with pytest.raises(DeviceLostError, match="broke the protocol"):
                device.get_tensor(tensor, 0, 1000)
        finally:
            asked.set()
