"""TLS between our own ends: what works, and whom either end does not let in."""

import logging
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from app.devices.base import BufferUsage, Device, DeviceInfo, DeviceKind
from app.devices.null import NullDevice
from app.devices.torch_device import TorchDevice
from app.errors import ConfigError, DeviceLostError
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.streams.settings import ClientTls, ServerTls
from app.rpc_backend.worker.server import RpcServer, ServerSettings, bind
from tests.helpers.certificates import Certificates
from tests.helpers.eventually import PATIENCE_S, eventually
from tests.helpers.fake_worker import Script, fake_worker, read, shut, wait_for_end
from tests.helpers.rpc_frames import HELLO
from tests.helpers.rpc_link import serving

HOST: Final = "127.0.0.1"
SECRET: Final = b"a secret of some length"
QUICK_S: Final = 2.0


@contextmanager
def tls_worker(
    tls: ServerTls, secret: bytes | None = None, hello_timeout_s: float = PATIENCE_S
) -> Iterator[RpcServer]:
    settings = ServerSettings(tls=tls, secret=secret, hello_timeout_s=hello_timeout_s)
    with serving([NullDevice()], settings) as server:
        yield server


def opened(
    port: int, tls: ClientTls | None, secret: bytes | None = None, timeout_s: float = PATIENCE_S
) -> RpcDevice:
    settings = ClientSettings(connect_timeout_s=timeout_s, tls=tls, secret=secret)
    (device,) = open_workers([f"{HOST}:{port}"], settings)
    return device


def is_served(port: int, tls: ClientTls, secret: bytes | None = None) -> bool:
    device = opened(port, tls, secret)
    total = device.memory().total
    device.close()
    return total > 0


def wait_for_log(caplog: pytest.LogCaptureFixture, text: str) -> str:
    """Return the worker's line that has a text in it."""
    eventually(lambda: text in caplog.text)
    return next(line for line in caplog.messages if text in line)


def memory_tensor(device: Device, n: int) -> Tensor:
    tensor = new_tensor(GGMLType.I8, (n,), "x")
    tensor.buffer = device.alloc(n, BufferUsage.ANY)
    tensor.offset = 0
    return tensor


def test_a_hundred_megabytes_go_both_ways_at_once(certificates: Certificates) -> None:
    torch.set_num_threads(1)
    local = TorchDevice(DeviceInfo("CPU", "test", DeviceKind.CPU), torch.device("cpu"))
    size, rng = 50_000_000, random.Random(4)
    old, new = [rng.randbytes(size) for _ in range(2)], [rng.randbytes(size) for _ in range(2)]
    with serving([local], ServerSettings(tls=certificates.signed(HOST))) as server:
        device = opened(server.port, certificates.trust)
        read_from = [memory_tensor(device, size) for _ in old]
        write_to = [memory_tensor(device, size) for _ in new]
        for tensor, data in zip(read_from, old, strict=True):
            device.set_tensor(tensor, data)
        answers = []
        for source, target, data in zip(read_from, write_to, new, strict=True):
            answers.append(device.get_tensor(source, 0, size))
            device.set_tensor(target, data)
        assert [answer.result(60) for answer in answers] == old
        assert [device.get_tensor(t, 0, size).result(60) for t in write_to] == new
        assert device.connection.bytes_sent > 4 * size
        device.close()


def test_a_ca_vouches_for_a_worker(certificates: Certificates) -> None:
    with tls_worker(certificates.signed(HOST)) as server:
        assert is_served(server.port, certificates.trust)


def test_a_worker_s_own_certificate_may_be_trusted_itself(certificates: Certificates) -> None:
    for made in (certificates.signed(HOST), certificates.own(HOST)):
        with tls_worker(made) as server:
            assert is_served(server.port, ClientTls(made.cert_file))


def test_a_secret_vouches_for_a_certificate_that_nobody_signed(certificates: Certificates) -> None:
    for made in (certificates.own("elsewhere"), certificates.expired(HOST)):
        with tls_worker(made, SECRET) as server:
            assert is_served(server.port, ClientTls(), SECRET)


def test_a_secret_does_not_soften_a_ca(certificates: Certificates) -> None:
    with (
        tls_worker(certificates.own(HOST), SECRET) as server,
        pytest.raises(DeviceLostError, match="not trusted"),
    ):
        opened(server.port, certificates.trust, SECRET)


def test_a_wrong_secret_is_refused_under_tls(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with tls_worker(certificates.own(HOST), SECRET) as server:
        with pytest.raises(DeviceLostError, match="secret"):
            opened(server.port, ClientTls(), b"another secret of some length")
        assert is_served(server.port, ClientTls(), SECRET)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("own", r"is not trusted \(.+\): name it or .* --rpc-tls-ca, or share a secret"),
        ("expired", r"has expired"),
        ("elsewhere", r"is for another host \(.*127\.0\.0\.1"),
    ],
)
def test_a_worker_that_is_not_who_it_should_be(
    certificates: Certificates, caplog: pytest.LogCaptureFixture, case: str, reason: str
) -> None:
    made = {
        "own": certificates.own(HOST),
        "expired": certificates.expired(HOST),
        "elsewhere": certificates.signed("elsewhere.example", "192.0.2.1"),
    }[case]
    with tls_worker(made) as server:
        endpoint = f"{HOST}:{server.port}"
        with pytest.raises(DeviceLostError, match=f"^RPC worker {endpoint}: .*{reason}"):
            opened(server.port, certificates.trust)
        line = wait_for_log(caplog, "the TLS handshake failed")
        assert "alert" in line


def test_without_a_ca_and_a_secret_the_system_s_list_counts(certificates: Certificates) -> None:
    with (
        tls_worker(certificates.signed(HOST)) as server,
        pytest.raises(DeviceLostError, match="not trusted"),
    ):
        opened(server.port, ClientTls())


def test_a_plain_client_is_told_to_use_tls(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with tls_worker(certificates.signed(HOST)) as server:
        with pytest.raises(DeviceLostError, match=rf"{HOST}:{server.port}: .*TLS.*--rpc-tls"):
            opened(server.port, None)
        wait_for_log(caplog, "refused: a client without TLS")
        assert is_served(server.port, certificates.trust)


def test_a_stock_client_gets_an_answer_to_hello_and_nothing_else(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with tls_worker(certificates.signed(HOST)) as server:
        with socket.create_connection((HOST, server.port), timeout=60) as sock:
            sock.sendall(HELLO)
            assert read(sock, 36)[:11] == bytes([28, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0])
            assert sock.recv(1) == b""
        wait_for_log(caplog, "refused: a client without TLS")


def test_a_tls_client_is_told_that_the_worker_is_plain(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with serving([NullDevice()]) as server:
        with pytest.raises(DeviceLostError, match=r"does not speak TLS: .*leave out --rpc-tls"):
            opened(server.port, certificates.trust)
        wait_for_log(caplog, "refused: a client that speaks TLS")


def hang_up(sock: socket.socket) -> None:
    read(sock, 1)


def talk_http(sock: socket.socket) -> None:
    read(sock, 100)
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    wait_for_end(sock)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (hang_up, "closed the connection in the TLS handshake"),
        (talk_http, "the TLS handshake failed"),
        (wait_for_end, "no answer to the TLS handshake"),
    ],
    ids=["hangs up", "another protocol", "silent"],
)
def test_whatever_answers_there_is_no_second_try_without_tls(
    certificates: Certificates, script: Script, reason: str
) -> None:
    first_bytes: list[bytes] = []

    def noted(sock: socket.socket) -> None:
        first_bytes.append(sock.recv(1, socket.MSG_PEEK))
        script(sock)

    with fake_worker(noted) as endpoint:
        port = int(endpoint.rpartition(":")[2])
        for secret in (None, SECRET):
            with pytest.raises(DeviceLostError, match=f"{endpoint}: .*{reason}"):
                opened(port, ClientTls(), secret, QUICK_S)
    assert first_bytes == [b"\x16", b"\x16"]


def test_somebody_in_between_is_noticed_by_the_secret(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    fake = certificates.own(HOST)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(fake.cert_file, fake.key_file)
    outward = ssl.create_default_context(cafile=str(certificates.trust.ca_file))
    n_relayed: list[int] = []

    def relay(sock: socket.socket) -> None:
        with (
            context.wrap_socket(sock, server_side=True) as near,
            socket.create_connection((HOST, server.port)) as plain,
            outward.wrap_socket(plain, server_hostname=HOST) as far,
        ):
            # HELLO, EXTEND and PROVE, each with the answer to it.
            for size, answer in ((33, 36), (42, 41), (41, 41)):
                far.sendall(read(near, size))
                near.sendall(read(far, answer))
                n_relayed.append(size)
            wait_for_end(near)

    with tls_worker(certificates.signed(HOST), SECRET) as server, fake_worker(relay) as endpoint:
        port = int(endpoint.rpartition(":")[2])
        with pytest.raises(DeviceLostError, match="secret"):
            opened(port, ClientTls(), SECRET)
        wait_for_log(caplog, "the client does not know this worker's secret")
    assert n_relayed == [33, 42, 41]


def test_a_host_that_no_certificate_can_name(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def resolved(host: str, *args: Any, **kwargs: Any) -> object:
        return real(HOST, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with (
        tls_worker(certificates.signed(HOST)) as server,
        pytest.raises(DeviceLostError, match=r"\.gpu:\d+: no certificate can be for this host"),
    ):
        open_workers([f".gpu:{server.port}"], ClientSettings(tls=ClientTls()))


def test_a_stalled_handshake_disturbs_nobody_and_ends(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with tls_worker(certificates.signed(HOST), hello_timeout_s=QUICK_S) as server:
        stalled = [socket.create_connection((HOST, server.port), timeout=60) for _ in range(8)]
        for sock in stalled:
            # The beginning of a ClientHello of 256 bytes.
            sock.sendall(b"\x16\x03\x01\x01\x00\x01\x00\x00\xfc\x03\x03")
        assert is_served(server.port, certificates.trust)
        for sock in stalled:
            with sock:
                wait_for_end(sock)
        wait_for_log(caplog, "the TLS handshake was not finished in time")
        eventually(lambda: server.n_clients == 0)


def test_drips_do_not_prolong_a_handshake(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with tls_worker(certificates.signed(HOST), hello_timeout_s=0.5) as server:
        with socket.create_connection((HOST, server.port), timeout=60) as sock:
            sock.sendall(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03")
            with pytest.raises(OSError):
                while True:
                    sock.sendall(b"\x00")
                    threading.Event().wait(0.01)
        wait_for_log(caplog, "not finished in time")


@pytest.mark.parametrize("size", [1, 5, 11, 300])
def test_garbage_behind_the_first_byte_is_a_warning(
    certificates: Certificates, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    noise = b"\x16" + random.Random(size).randbytes(size)
    with tls_worker(certificates.signed(HOST), hello_timeout_s=QUICK_S) as server:
        with socket.create_connection((HOST, server.port), timeout=60) as sock:
            sock.sendall(noise)
            shut(sock)
        line = wait_for_log(caplog, "refused: ")
        assert "TLS handshake" in line
        assert is_served(server.port, certificates.trust)


def test_a_port_check_is_no_news(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with tls_worker(certificates.signed(HOST)) as server:
        socket.create_connection((HOST, server.port)).close()
        assert is_served(server.port, certificates.trust)
        eventually(lambda: server.n_clients == 0)
    assert len([m for m in caplog.messages if m.startswith(HOST)]) == 1


def test_a_stopped_worker_cuts_off_tls_clients(certificates: Certificates) -> None:
    with tls_worker(certificates.signed(HOST)) as server:
        device = opened(server.port, certificates.trust)
    with pytest.raises(DeviceLostError, match=r"closed the connection|connection broke"):
        device.memory()
    device.close()


def test_files_that_are_no_certificates_are_refused_at_once(
    certificates: Certificates, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    other.write_text("no certificate\n")
    made = certificates.signed(HOST)
    listener = bind(HOST, 0)
    with listener, pytest.raises(ConfigError, match=f"--tls-cert {other}"):
        RpcServer(listener, [], ServerSettings(tls=ServerTls(other, made.key_file)))
    with (
        tls_worker(made) as server,
        pytest.raises(ConfigError, match=f"--rpc-tls-ca {other}: "),
    ):
        opened(server.port, ClientTls(other))
