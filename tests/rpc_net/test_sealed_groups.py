"""The connection of two workers that add tensors up: who is taken for the other rank and who is
not, in the stock form and between workers that have a secret or TLS.
"""

import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_network
from typing import Final

import numpy as np
import pytest
import torch

from app.devices.base import Device, DeviceInfo, DeviceKind
from app.devices.torch_device import TorchDevice
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.client.group import WorkerPair
from app.rpc_backend.errors import GroupError
from app.rpc_backend.streams.context import worker_certificate
from app.rpc_backend.streams.settings import ClientTls
from app.rpc_backend.worker.allowed import Network
from app.rpc_backend.worker.link import Link, LinkLimits
from app.rpc_backend.worker.meeting import accept_link, open_link
from app.rpc_backend.worker.seal import STOCK_FORM, Seal
from app.rpc_backend.worker.server import ServerSettings
from tests.helpers.certificates import Certificates
from tests.helpers.process import free_port
from tests.helpers.rpc_link import serving, spread

HOST: Final = "127.0.0.1"
SECRET: Final = b"a secret of some length"
SEALED: Final = Seal(SECRET)
PATIENT: Final = LinkLimits(60, 60, 60)
BRIEF: Final = LinkLimits(0.5, 0.5, 0.5)
PROOF_BYTES: Final = 32
NONCE_BYTES: Final = 32
ANSWER_S: Final = 60


def stays() -> bool:
    """A client that does not leave."""
    return False


def cpu() -> Device:
    torch.set_num_threads(1)
    return TorchDevice(DeviceInfo("CPU", "test", DeviceKind.CPU), torch.device("cpu"))


def opened(stack: ExitStack, settings: ServerSettings, client: ClientSettings) -> RpcDevice:
    server = stack.enter_context(serving([cpu()], settings))
    (device,) = open_workers([f"{HOST}:{server.port}"], client)
    stack.callback(device.close)
    return device


def filled(device: RpcDevice, values: np.ndarray) -> Tensor:
    tensor = new_tensor(GGMLType.F32, values.shape, "x")
    spread(device, [tensor])
    device.set_tensor(tensor, values.tobytes())
    return tensor


@pytest.mark.parametrize("kind", ["secret", "secret and TLS", "TLS"])
@pytest.mark.parametrize("n", [1000, 600_000])
def test_workers_of_one_kind_add_up(certificates: Certificates, kind: str, n: int) -> None:
    secret = SECRET if "secret" in kind else None
    with ExitStack() as stack:
        devices = []
        for _ in range(2):
            own = certificates.own("elsewhere") if secret else certificates.signed(HOST)
            trust = ClientTls() if secret else certificates.trust
            tls = own if "TLS" in kind else None
            settings = ServerSettings(secret=secret, tls=tls, trust=trust, link_limits=PATIENT)
            client = ClientSettings(secret=secret, tls=None if tls is None else trust)
            devices.append(opened(stack, settings, client))
        first, second = devices
        pair = WorkerPair(first, second, port=free_port())
        # Whole numbers are exact in BF16.
        a, b = (np.arange(n, dtype=np.float32) % 7 + k for k in range(2))
        tensors = filled(first, a), filled(second, b)
        for _ in range(2):
            pair.all_reduce(*tensors)
        for device, tensor in zip(devices, tensors, strict=True):
            got = device.get_tensor(tensor, 0, tensor.nbytes).result(ANSWER_S)
            np.testing.assert_array_equal(np.frombuffer(got, np.float32), 2 * (a + b))
        pair.close()


class Rank0:
    """A port where rank 1 is waited for, by a thread."""

    def __init__(self, pool: ThreadPoolExecutor, seal: Seal, allowed: tuple[Network, ...]) -> None:
        self.port = free_port()
        self.link: Future[Link] = pool.submit(
            accept_link, HOST, self.port, PATIENT, stays, allowed, seal
        )

    def visit(self) -> socket.socket:
        """Connect, once it listens."""
        while True:
            try:
                return socket.create_connection((HOST, self.port), ANSWER_S)
            except ConnectionRefusedError:
                if self.link.done():
                    raise

    def is_met(self, seal: Seal) -> bool:
        """Whether the right one still gets through, and has a way for bytes then."""
        near = open_link(HOST, self.port, PATIENT, stays, seal)
        far, got = self.link.result(ANSWER_S), bytearray(4)
        near.send(b"ping")
        far.receive_into(memoryview(got))
        near.close()
        far.close()
        return got == b"ping"


@contextmanager
def waiting(seal: Seal, allowed: tuple[Network, ...] = ()) -> Iterator[Rank0]:
    with ThreadPoolExecutor(1) as pool:
        yield Rank0(pool, seal, allowed)


def leave(sock: socket.socket) -> None:
    sock.close()


def say_too_little(sock: socket.socket) -> None:
    sock.sendall(bytes(23))
    sock.close()


def stay_silent(sock: socket.socket) -> None:
    return


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
    sock.close()


@pytest.mark.parametrize("stranger", [leave, say_too_little, stay_silent, reset])
@pytest.mark.parametrize("seal", [STOCK_FORM, SEALED], ids=["stock", "sealed"])
def test_strangers_who_come_first_do_not_end_the_wait(
    seal: Seal, stranger: Callable[[socket.socket], None]
) -> None:
    with waiting(seal) as rank_0, ExitStack() as stack:
        for _ in range(3):
            stranger(stack.enter_context(rank_0.visit()))
        assert rank_0.is_met(seal)


def test_more_silent_strangers_than_are_greeted_at_once_do_not_either() -> None:
    with waiting(STOCK_FORM) as rank_0, ExitStack() as stack:
        guests = [stack.enter_context(rank_0.visit()) for _ in range(40)]
        assert rank_0.is_met(STOCK_FORM)
        # Everybody is sent away.
        assert all(guest.recv(1) == b"" for guest in guests[:16])


def test_who_is_not_in_the_list_does_not_either(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    elsewhere = (ip_network("127.0.0.2"),)
    with waiting(STOCK_FORM, elsewhere) as rank_0:
        with rank_0.visit() as sock:
            assert sock.recv(1) == b""
        with socket.socket() as sock:
            sock.bind(("127.0.0.2", 0))
            sock.connect((HOST, rank_0.port))
            sock.sendall(bytes(24))
            assert sock.recv(24) == bytes(24)
        rank_0.link.result(ANSWER_S).close()
    assert "rank 1 at 127.0.0.1: not in --allow" in caplog.text


def read(sock: socket.socket, size: int) -> bytes:
    data = b""
    # Hanging up on bytes that were not read is a reset.
    with suppress(ConnectionResetError):
        while len(data) < size and (more := sock.recv(size - len(data))):
            data += more
    return data


def test_rank_0_shows_no_proof_to_who_has_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with waiting(SEALED) as rank_0:
        for proof in (bytes(PROOF_BYTES), b"x" * PROOF_BYTES):
            with rank_0.visit() as sock:
                sock.sendall(bytes(NONCE_BYTES) + proof + bytes(24))
                nonce = read(sock, NONCE_BYTES)
                assert len(set(nonce)) > 8
                assert read(sock, 1) == b""
        assert rank_0.is_met(SEALED)
    assert caplog.text.count("rank 1 at 127.0.0.1 does not know this worker's secret") == 2


def test_what_rank_0_says_is_no_proof_for_rank_0() -> None:
    with waiting(SEALED) as rank_0:
        with rank_0.visit() as sock:
            nonce = read(sock, NONCE_BYTES)
            sock.sendall(nonce + nonce)
            assert read(sock, 1) == b""
        assert rank_0.is_met(SEALED)


def test_another_secret_is_refused_by_rank_0_and_the_wait_goes_on() -> None:
    with waiting(SEALED) as rank_0:
        rank_0.visit().close()
        with pytest.raises(GroupError, match=r"rank 0 at 127\.0\.0\.1.*(closed|broke)"):
            open_link(HOST, rank_0.port, PATIENT, stays, Seal(b"another secret, long enough"))
        assert rank_0.is_met(SEALED)


def test_strangers_without_end_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with waiting(STOCK_FORM) as rank_0:
        for _ in range(100):
            with rank_0.visit() as sock:
                sock.shutdown(socket.SHUT_WR)
                assert sock.recv(1) == b""
        assert rank_0.is_met(STOCK_FORM)
    assert len(caplog.records) < 100
    assert "more connections within" in caplog.text


def test_the_deadline_names_the_last_who_came() -> None:
    port, visitors = free_port(), list[socket.socket]()

    def visited() -> bool:
        """Asked while nobody has come: let somebody come."""
        if not visitors:
            visitors.append(socket.create_connection((HOST, port)))
            visitors[0].sendall(bytes(NONCE_BYTES + PROOF_BYTES))
        return False

    with pytest.raises(GroupError, match=r"nothing within 0\.5 s; .*does not know .* secret"):
        accept_link(HOST, port, BRIEF, visited, seal=SEALED)
    visitors[0].close()


def test_who_only_sends_back_what_it_gets_is_no_rank_0() -> None:
    with socket.create_server((HOST, 0)) as listener, ThreadPoolExecutor(1) as pool:

        def echo() -> int:
            sock, _ = listener.accept()
            n = 0
            with sock:
                while data := sock.recv(1000):
                    sock.sendall(data)
                    n += len(data)
            return n

        echoed = pool.submit(echo)
        with pytest.raises(GroupError, match=r"rank 0 at .* does not know"):
            open_link(HOST, listener.getsockname()[1], PATIENT, stays, SEALED)
        assert echoed.result(ANSWER_S) == NONCE_BYTES + PROOF_BYTES


def test_a_worker_with_tls_takes_none_without(certificates: Certificates) -> None:
    sealed = Seal(None, worker_certificate(certificates.signed(HOST)), certificates.trust)
    with waiting(sealed) as rank_0:
        rank_0.visit().close()
        with pytest.raises(GroupError, match="rank 0 at 127"):
            open_link(HOST, rank_0.port, PATIENT, stays)
        assert rank_0.is_met(sealed)


def test_rank_1_with_tls_does_without_it_nowhere(certificates: Certificates) -> None:
    sealed = Seal(None, worker_certificate(certificates.signed(HOST)), certificates.trust)
    with waiting(STOCK_FORM) as rank_0:
        rank_0.visit().close()
        with pytest.raises(GroupError, match="rank 0 at 127"):
            open_link(HOST, rank_0.port, PATIENT, stays, sealed)
        # In the stock form whoever says enough is believed.
        rank_0.link.result(ANSWER_S).close()


def test_rank_1_believes_no_certificate_that_nobody_vouches_for(
    certificates: Certificates,
) -> None:
    made = certificates.own(HOST)
    shown = worker_certificate(made)
    with waiting(Seal(None, shown)) as rank_0:
        rank_0.visit().close()
        with pytest.raises(GroupError, match="certificate verify failed"):
            open_link(HOST, rank_0.port, PATIENT, stays, Seal(None, shown, certificates.trust))
        assert rank_0.is_met(Seal(None, shown, ClientTls(made.cert_file)))


def hand_on(listener: socket.socket, port: int, near_context: ssl.SSLContext) -> int:
    """Be rank 0 for rank 1 and rank 1 for rank 0; return how many bytes were handed on."""
    far_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    far_context.check_hostname, far_context.verify_mode = False, ssl.CERT_NONE
    sock, _ = listener.accept()
    with (
        near_context.wrap_socket(sock, server_side=True) as near,
        socket.create_connection((HOST, port), ANSWER_S) as plain,
        far_context.wrap_socket(plain) as far,
    ):
        n = 0
        for source, target, size in (
            (near, far, NONCE_BYTES),
            (far, near, NONCE_BYTES),
            (near, far, PROOF_BYTES),
            (far, near, PROOF_BYTES),
        ):
            data = read(source, size)
            n += len(data)
            target.sendall(data)
    return n


def test_a_proof_is_for_one_certificate(certificates: Certificates) -> None:
    shown, other = (worker_certificate(certificates.own("elsewhere")) for _ in range(2))
    with (
        waiting(Seal(SECRET, shown)) as rank_0,
        socket.create_server((HOST, 0)) as between,
        ThreadPoolExecutor(1) as pool,
    ):
        rank_0.visit().close()
        handed_on = pool.submit(hand_on, between, rank_0.port, other.current().context)
        with pytest.raises(GroupError, match=r"closed|broke"):
            open_link(HOST, between.getsockname()[1], PATIENT, stays, Seal(SECRET, other))
        assert handed_on.result(ANSWER_S) == 2 * NONCE_BYTES + PROOF_BYTES
        assert rank_0.is_met(Seal(SECRET, shown))


def test_when_rank_1_refuses_rank_0_does_not_wait_for_it() -> None:
    with ExitStack() as stack:
        settings = ServerSettings(link_limits=PATIENT)
        first, second, third = (opened(stack, settings, ClientSettings()) for _ in range(3))
        pair = WorkerPair(first, second, port=free_port())
        with pytest.raises(GroupError) as caught:
            WorkerPair(third, second, port=free_port())
        assert "as rank 1: it refused" in str(caught.value)
        assert "as rank 0" not in str(caught.value)
        pair.close()
