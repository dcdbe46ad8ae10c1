"""Opening workers: what goes wrong is said with the endpoint and the reason."""

import errno
import os
import socket
import threading

import pytest

from app.devices.null import NullDevice
from app.errors import DeviceLostError
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.errors import VersionMismatchError
from tests.helpers.eventually import eventually
from tests.helpers.fake_worker import Script, fake_worker, greet, read, wait_for_end
from tests.helpers.proc import n_descriptors
from tests.helpers.process import free_port
from tests.helpers.rpc_frames import HELLO, response, u32, u64
from tests.helpers.rpc_link import serving

HASTY = ClientSettings(connect_timeout_s=0.3)
PATIENT = ClientSettings(connect_timeout_s=60)


def closed_port() -> str:
    return f"127.0.0.1:{free_port()}"


def test_devices_of_all_endpoints_are_numbered_in_order() -> None:
    first, second = [NullDevice("A"), NullDevice("B")], [NullDevice("C")]
    with serving(first) as one, serving(second) as two:
        names = [f"127.0.0.1:{one.port}", f"127.0.0.1:{two.port}"]
        devices = open_workers([",".join(names)])
        assert [d.info.name for d in devices] == ["RPC0", "RPC1", "RPC2"]
        assert [d.info.description for d in devices] == [names[0], names[0], names[1]]
        assert one.n_clients == two.n_clients == 1
        for device in devices[:2]:
            device.close()
            device.close()
        eventually(lambda: one.n_clients == 0)
        assert two.n_clients == 1
        devices[2].close()


def test_no_endpoints_are_no_devices() -> None:
    assert open_workers([]) == []


def test_a_closed_port() -> None:
    endpoint = closed_port()
    with pytest.raises(DeviceLostError, match=f"{endpoint}: connection refused"):
        open_workers([endpoint])


def test_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(DeviceLostError, match=r"gpu-box:50052: the name 'gpu-box' is unknown"):
        open_workers(["gpu-box"])


def test_a_busy_stock_worker_is_called_that() -> None:
    with (
        fake_worker(wait_for_end) as endpoint,
        pytest.raises(DeviceLostError, match=rf"{endpoint}.*within 0\.3 s.*one at a time"),
    ):
        open_workers([endpoint], HASTY)


def test_a_web_server_is_no_worker() -> None:
    def script(sock: socket.socket) -> None:
        read(sock, len(HELLO))
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    with (
        fake_worker(script) as endpoint,
        pytest.raises(DeviceLostError, match=f"{endpoint}: this is no RPC server"),
    ):
        open_workers([endpoint], PATIENT)


def test_a_worker_that_hangs_up_instead_of_hello() -> None:
    def script(sock: socket.socket) -> None:
        read(sock, len(HELLO))

    with (
        fake_worker(script) as endpoint,
        pytest.raises(DeviceLostError, match=f"{endpoint}.*closed the connection"),
    ):
        open_workers([endpoint], PATIENT)


@pytest.mark.parametrize("version", [(1, 0, 0), (4, 0, 1), (6, 0, 1), (8, 1, 0), (9, 0, 0)])
def test_other_versions_are_refused_with_both_named(version: tuple[int, int, int]) -> None:
    def script(sock: socket.socket) -> None:
        read(sock, len(HELLO))
        sock.sendall(response(bytes([*version, 0]) + bytes(24)))
        wait_for_end(sock)

    text = ".".join(map(str, version))
    with (
        fake_worker(script) as endpoint,
        pytest.raises(VersionMismatchError, match=rf"{endpoint}.* {text}, .*8\.0\.0"),
    ):
        open_workers([endpoint], PATIENT)


@pytest.mark.parametrize("count", [0, 65, 2**32 - 1])
def test_an_absurd_number_of_devices_is_refused(count: int) -> None:
    def script(sock: socket.socket) -> None:
        greet(sock)
        read(sock, 9)
        sock.sendall(response(u32(count)))
        wait_for_end(sock)

    with (
        fake_worker(script) as endpoint,
        pytest.raises(DeviceLostError, match=f"{endpoint}: {count} devices"),
    ):
        open_workers([endpoint], PATIENT)


@pytest.mark.parametrize(
    ("alignment", "largest", "reason"),
    [
        (0, 1 << 40, "alignment 0"),
        (1 << 63, 1 << 40, "alignment 9223372036854775808"),
        (32, 0, "largest buffer 0"),
    ],
)
def test_a_device_that_nothing_fits_on_is_refused(
    alignment: int, largest: int, reason: str
) -> None:
    def script(sock: socket.socket) -> None:
        greet(sock)
        read(sock, 9)
        sock.sendall(response(u32(1)))
        for value in (alignment, largest):
            read(sock, 13)
            sock.sendall(response(u64(value)))
        wait_for_end(sock)

    with (
        fake_worker(script) as endpoint,
        pytest.raises(DeviceLostError, match=f"{endpoint}: .*{reason}.*: expected"),
    ):
        open_workers([endpoint], PATIENT)


def test_an_address_of_a_family_that_this_machine_lacks_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, make = socket.getaddrinfo("127.0.0.1", 0, type=socket.SOCK_STREAM), socket.socket

    def without_v6(family: int = -1, *more: int, **named: object) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return make(family, *more, **named)  # type: ignore[arg-type]

    with serving([NullDevice()]) as server:
        v4 = (*found[0][:4], ("127.0.0.1", server.port))
        v6 = (socket.AF_INET6, *found[0][1:4], ("::1", server.port, 0, 0))
        with monkeypatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", lambda *_, **__: [v6, v4])
            patch.setattr(socket, "socket", without_v6)
            (device,) = open_workers([f"gpu-box:{server.port}"])
            device.close()
            patch.setattr(socket, "getaddrinfo", lambda *_, **__: [v6])
            with pytest.raises(DeviceLostError, match=r"gpu-box:.* Address family not supported"):
                open_workers([f"gpu-box:{server.port}"])


def exhausted(*args: object, **kwargs: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def no_thread(self: threading.Thread) -> None:
    if self.name.startswith("rpc-receive"):
        raise RuntimeError("can't start new thread")
    START(self)


START = threading.Thread.start


@pytest.mark.parametrize(
    ("where", "what", "instead", "reason"),
    [
        (socket, "socketpair", exhausted, "Too many open files"),
        (threading.Thread, "start", no_thread, "can't start new thread"),
    ],
    ids=["descriptors", "threads"],
)
def test_a_machine_that_has_no_more_to_give_is_an_error_and_nothing_is_left_open(
    where: object, what: str, instead: object, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving([NullDevice()]) as server:
        with monkeypatch.context() as patch:
            patch.setattr(where, what, instead)
            with pytest.raises(DeviceLostError, match=f"127.0.0.1:{server.port}: .*{reason}"):
                open_workers([f"127.0.0.1:{server.port}"])
        eventually(lambda: server.n_clients == 0)
    assert_no_threads()


def assert_no_threads() -> None:
    """None that talks to workers is left."""
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("rpc-")])


def falls_silent(sock: socket.socket) -> None:
    greet(sock)
    wait_for_end(sock)


def gives_nonsense(sock: socket.socket) -> None:
    greet(sock)
    read(sock, 9)
    sock.sendall(response(u32(3)))
    read(sock, 13)
    sock.sendall(response(u64(32)))
    read(sock, 13)
    sock.sendall(u64(1 << 63))


@pytest.mark.parametrize("script", [wait_for_end, falls_silent, gives_nonsense])
def test_nothing_is_left_of_workers_that_could_not_be_opened(script: Script) -> None:
    with serving([NullDevice(), NullDevice()]) as server, fake_worker(script) as bad:
        before = n_descriptors(os.getpid())
        for _ in range(3):
            with pytest.raises(DeviceLostError, match=bad):
                open_workers([f"127.0.0.1:{server.port},{bad}"], HASTY)
        assert_no_threads()
        eventually(lambda: server.n_clients == 0)
        # The other ends are in this process too, and may close a moment later.
        eventually(lambda: n_descriptors(os.getpid()) <= before)


def test_a_worker_that_falls_silent_after_hello() -> None:
    def script(sock: socket.socket) -> None:
        greet(sock)
        wait_for_end(sock)

    with (
        fake_worker(script) as endpoint,
        pytest.raises(DeviceLostError, match=f"{endpoint}.*DeviceCount was not answered"),
    ):
        open_workers([endpoint], ClientSettings(connect_timeout_s=2))


def test_every_failed_endpoint_is_named_and_the_good_one_let_go() -> None:
    with serving([NullDevice()]) as server:
        bad = [closed_port(), closed_port()]
        endpoints = [bad[0], f"127.0.0.1:{server.port}", bad[1]]
        with pytest.raises(DeviceLostError) as caught:
            open_workers(endpoints)
        assert all(endpoint in str(caught.value) for endpoint in bad)
        eventually(lambda: server.n_clients == 0)
