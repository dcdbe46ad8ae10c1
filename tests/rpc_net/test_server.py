"""Many clients of one worker: nobody waits for, sees, or is harmed by another."""

import errno
import logging
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from app.devices.base import BufferUsage
from app.devices.null import NullDevice
from app.errors import ConfigError, DeviceLostError, LlamaServeError
from app.ggml.tensor import new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.streams.plain import PlainStream
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.constants import Cmd
from app.rpc_backend.worker.server import RpcServer, ServerSettings, bind
from tests.helpers.eventually import eventually
from tests.helpers.fake_worker import read
from tests.helpers.proc import n_wakeups, processor_ticks, threads
from tests.helpers.rpc_frames import HELLO, frame, tensor_bytes, u32, u64
from tests.helpers.rpc_link import serving, spread


@contextmanager
def raw_client(server: RpcServer, greet: bool = True) -> Iterator[socket.socket]:
    """A bare connection, after HELLO unless `greet` is off."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
        if greet:
            sock.sendall(HELLO)
            read(sock, 36)
        yield sock


def is_closed(sock: socket.socket) -> bool:
    """Whether the worker has ended the connection; waits for it."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def open_one(server: RpcServer) -> RpcDevice:
    (device,) = open_workers([f"127.0.0.1:{server.port}"])
    return device


def test_two_clients_at_once_have_their_own_memory() -> None:
    null = NullDevice()
    with serving([null]) as server:
        first, second = open_one(server), open_one(server)
        x, y = new_tensor(GGMLType.I8, (100,), "x"), new_tensor(GGMLType.I8, (100,), "y")
        spread(first, [x])
        spread(second, [y])
        assert len(null.buffers) == 2
        first.set_tensor(x, bytes(100))
        second.set_tensor(y, bytes(100))
        first.synchronize()
        second.synchronize()
        assert null.bytes_written == 200
        first.close()
        eventually(lambda: len(null.buffers) == 1)
        assert second.get_tensor(y, 0, 100).result(60) == bytes(100)
        second.close()
        eventually(lambda: not null.buffers)


@pytest.mark.parametrize("stop_at", [4, 9, 100, 314, 1000, 300_000])
def test_a_client_that_is_killed_in_an_upload_leaves_nothing(
    stop_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    null = NullDevice()
    caplog.set_level(logging.INFO)
    with serving([null]) as server:
        with raw_client(server) as sock:
            sock.sendall(frame(Cmd.ALLOC_BUFFER, u32(0), u64(1 << 20)))
            handle, _ = struct.unpack("<QQ", read(sock, 24)[8:])
            sock.sendall(frame(Cmd.BUFFER_GET_BASE, u64(handle)))
            (base,) = struct.unpack("<Q", read(sock, 16)[8:])
            raw = tensor_bytes(
                id=1, type=24, buffer=handle, data=base, ne=(1 << 20, 1, 1, 1), nb=(1, 4, 4, 4)
            )
            upload = frame(Cmd.SET_TENSOR, raw, b"\0", u64(0), bytes(1 << 20))
            sock.sendall(upload[:stop_at])
            assert len(null.buffers) == 1
            # Closing with this option sends a reset, as the death of a machine would.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        eventually(lambda: not null.buffers and server.n_clients == 0)
    assert "connection lost" in caplog.text or "closed by the client" in caplog.text


def test_a_client_that_stalls_in_a_frame_holds_nobody_up() -> None:
    with serving([NullDevice()]) as server, raw_client(server) as stalled:
        stalled.sendall(frame(Cmd.GET_ALIGNMENT, u32(0))[:11])
        device = open_one(server)
        assert device.memory().total > 0
        device.close()
        stalled.sendall(frame(Cmd.GET_ALIGNMENT, u32(0))[11:])
        assert read(stalled, 16) == u64(8, 32)


def test_silence_before_hello_is_cut_off() -> None:
    settings = ServerSettings(hello_timeout_s=0.1)
    with serving([NullDevice()], settings) as server, raw_client(server, greet=False) as sock:
        assert is_closed(sock)


def test_silence_after_hello_is_not() -> None:
    settings = ServerSettings(hello_timeout_s=2)
    with serving([NullDevice()], settings) as server, raw_client(server) as sock:
        threading.Event().wait(2.5)
        sock.sendall(frame(Cmd.DEVICE_COUNT))
        assert read(sock, 12)[8:] == u32(1)


def test_when_too_many_come_the_longest_idle_without_memory_goes() -> None:
    with serving([NullDevice()], ServerSettings(max_clients=3)) as server:
        holder = open_one(server)
        holder.alloc(64, BufferUsage.ANY)
        with raw_client(server) as oldest, raw_client(server) as newer:
            late = open_one(server)
            assert is_closed(oldest)
            newer.sendall(frame(Cmd.DEVICE_COUNT))
            assert read(newer, 12)[8:] == u32(1)
            holder.synchronize()
            late.close()
        holder.close()


def test_clients_with_memory_are_not_cut_off_for_new_ones() -> None:
    with serving([NullDevice()], ServerSettings(max_clients=1)) as server:
        holder = open_one(server)
        holder.alloc(64, BufferUsage.ANY)
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
            assert is_closed(sock)
        holder.synchronize()
        holder.close()


def test_strangers_do_not_cut_off_who_has_proved_the_secret() -> None:
    with ExitStack() as stack:
        settings = ServerSettings(max_clients=3, secret=b"a secret of the house")
        server = stack.enter_context(serving([NullDevice()], settings))
        (proven,) = open_workers(
            [f"127.0.0.1:{server.port}"], ClientSettings(secret=settings.secret)
        )
        strangers = [stack.enter_context(raw_client(server)) for _ in range(4)]
        assert is_closed(strangers[0])
        assert is_closed(strangers[1])
        proven.synchronize()
        proven.close()


def test_short_connections_in_a_row_are_served_and_forgotten() -> None:
    with serving([NullDevice()]) as server:
        for _ in range(50):
            with raw_client(server) as sock:
                sock.sendall(frame(Cmd.DEVICE_COUNT))
                assert read(sock, 12)[8:] == u32(1)
        eventually(lambda: server.n_clients == 0)


BAD = {
    "no HELLO": (False, frame(Cmd.DEVICE_COUNT)),
    "HTTP": (False, b"GET / HTTP/1.1\r\n\r\n"),
    "unknown command": (True, frame(99)),
    "length 2^63": (True, bytes([Cmd.GET_TENSOR]) + u64(1 << 63)),
    "foreign handle": (True, frame(Cmd.FREE_BUFFER, u64(12345))),
}


@pytest.mark.parametrize(("greet", "data"), BAD.values(), ids=BAD)
def test_bad_input_closes_one_connection_with_one_line_in_the_log(
    greet: bool, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with serving([NullDevice()]) as server:
        with raw_client(server, greet) as sock:
            peer = "{}:{}".format(*sock.getsockname())
            sock.sendall(data)
            assert is_closed(sock)
        eventually(lambda: server.n_clients == 0)
        device = open_one(server)
        device.close()
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warning.startswith(peer)


def test_each_connection_leaves_one_line_with_its_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with serving([NullDevice()], ServerSettings(7)) as server:
        device = open_one(server)
        x = new_tensor(GGMLType.I8, (1 << 20,), "x")
        spread(device, [x])
        device.set_tensor(x, bytes(1 << 20))
        device.synchronize()
        device.close()
        eventually(lambda: server.n_clients == 0)
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert re.match(
        r"127\.0\.0\.1:\d+: llama-serve v7\.0\.0, .* 1\.00 MiB in, 0\.00 MiB out, "
        r"0 graphs, 0 runs: closed",
        line,
    )


def test_a_client_that_leaves_when_it_hears_the_version_is_told_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving([NullDevice()], ServerSettings(7)) as server:
        with raw_client(server):
            pass
        eventually(lambda: server.n_clients == 0)
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert line.endswith("heard v7.0.0: a stock one speaks only its own version (--protocol)")


def test_failures_are_counted_in_the_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with serving([NullDevice()]) as server:
        device = open_one(server)
        device.connection.tell(m.FreeBuffer(77))
        with pytest.raises(LlamaServeError, match="FREE_BUFFER: buffer handle 0x4d"):
            device.synchronize()
        device.close()
        eventually(lambda: server.n_clients == 0)
    assert "0 runs, 1 failures: closed" in caplog.text


def test_a_port_check_leaves_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with serving([NullDevice()]) as server:
        socket.create_connection(("127.0.0.1", server.port), timeout=60).close()
        device = open_one(server)
        device.close()
        eventually(lambda: server.n_clients == 0)
    assert len([r for r in caplog.records if "v8.0.0" in r.getMessage()]) == 1


def test_stopping_cuts_clients_off_and_frees_their_memory() -> None:
    null = NullDevice()
    with serving([null]) as server:
        device = open_one(server)
        device.alloc(64, BufferUsage.ANY)
        server.stop()
        eventually(lambda: not null.buffers)
        with pytest.raises(DeviceLostError):
            device.memory()
        device.close()


def test_a_taken_port_is_a_clear_error() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        taken.listen()
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: Address already in use"):
            bind("127.0.0.1", port)


def test_an_unknown_host_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"--host 256\.1\.1\.1"):
        bind("256.1.1.1", 0)


def test_no_thread_does_anything_for_an_idle_client() -> None:
    pid = os.getpid()
    before = threads(pid)
    with serving([NullDevice()]) as server:
        device = open_one(server)
        device.synchronize()
        ours = threads(pid) - before

        def used() -> tuple[int, int]:
            return processor_ticks(pid, ours), n_wakeups(pid, ours)

        def is_still() -> bool:
            begun = used()
            threading.Event().wait(0.5)
            return used() == begun

        assert len(ours) >= 2
        # They may still be on their way to where they wait.
        eventually(is_still)
        device.close()


def test_a_connection_that_the_system_gives_up_is_not_called_an_incomplete_greeting(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unplugged(PlainStream):
        def recv_into(self, room: memoryview) -> int:
            n = super().recv_into(room)
            if n == 0:
                raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
            return n

    def admit(sock: socket.socket, tls: object, deadline: float) -> Unplugged:
        return Unplugged(sock)

    monkeypatch.setattr("app.rpc_backend.worker.peer.admit", admit)
    caplog.set_level(logging.INFO)
    with serving([NullDevice()]) as server:
        with raw_client(server) as sock:
            sock.sendall(frame(Cmd.GET_ALIGNMENT, u32(0)))
            read(sock, 16)
        eventually(lambda: "Connection timed out" in caplog.text or "greeting" in caplog.text)
    assert "connection lost between requests: Connection timed out" in caplog.text
