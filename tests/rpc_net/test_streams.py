"""Streams keep their contract, whatever carries the bytes: one end waits, the other does not."""

import hashlib
import os
import random
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Final

import pytest

from app.devices.null import NullDevice
from app.rpc_backend.client.endpoint import Endpoint, connect
from app.rpc_backend.streams.base import Stream
from app.rpc_backend.streams.context import client_context, worker_context
from app.rpc_backend.streams.plain import PlainStream, tune
from app.rpc_backend.streams.tls import TlsStream
from tests.helpers.certificates import Certificates
from tests.helpers.eventually import eventually
from tests.helpers.rpc_link import serving

PATIENCE_S: Final = 60


@dataclass(frozen=True, slots=True)
class Pair:
    """A client's end, which never waits, and a worker's end, which does."""

    client: Stream
    worker: Stream
    worker_sock: socket.socket


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname()[:2])
        far, _ = listener.accept()
    for sock in (near, far):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(PATIENCE_S)
    return near, far


def tls_pair(certificates: Certificates) -> Pair:
    near, far = connected()
    shown = worker_context(certificates.signed("127.0.0.1"))
    context = client_context(certificates.trust, has_secret=False)
    client = TlsStream(near, context, "127.0.0.1")
    worker = TlsStream(far, shown.context, own_digest=shown.digest)
    deadline = time.monotonic() + PATIENCE_S
    thread = threading.Thread(target=worker.handshake, args=(deadline,))
    thread.start()
    client.handshake(deadline)
    thread.join()
    return Pair(client, worker, far)


@pytest.fixture(params=["plain", "tls"])
def pair(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Pair]:
    if request.param == "tls":
        made = tls_pair(certificates)
    else:
        near, far = connected()
        made = Pair(PlainStream(near), PlainStream(far), far)
    made.client.settimeout(0)
    made.worker.settimeout(PATIENCE_S)
    yield made
    made.client.close()
    made.worker.close()


def polled(stream: Stream, events: int) -> bool:
    poller = select.poll()
    poller.register(stream.fileno(), events)
    return bool(poller.poll(PATIENCE_S * 1000))


def send_polling(stream: Stream, data: bytes, size: int = 1 << 20) -> None:
    """Send as the client's transport does."""
    rest = memoryview(data)
    while rest or stream.has_unsent:
        try:
            rest = rest[stream.send([rest[:size]] if rest else []) :]
        except BlockingIOError:
            assert polled(stream, select.POLLOUT)


def receive_polling(stream: Stream, n: int, size: int = 1 << 20) -> bytes:
    """Receive as the client's transport does."""
    data = bytearray(n)
    room = memoryview(data)
    while room:
        assert stream.has_data or polled(stream, select.POLLIN)
        with suppress(BlockingIOError):
            got = stream.recv_into(room[:size])
            assert got > 0
            room = room[got:]
    return bytes(data)


def receive(stream: Stream, n: int, size: int = 1 << 20) -> bytes:
    """Receive as the worker does."""
    data = bytearray(n)
    room = memoryview(data)
    while room:
        got = stream.recv_into(room[:size])
        assert got > 0
        room = room[got:]
    return bytes(data)


def test_a_hundred_megabytes_each_way_at_once(pair: Pair) -> None:
    there, back = (random.Random(seed).randbytes(100_000_000) for seed in (1, 2))
    arrived: dict[str, bytes] = {}

    def run_client() -> None:
        arrived["back"] = hashlib.sha256(receive_polling(pair.client, len(back))).digest()

    def run_worker() -> None:
        arrived["there"] = hashlib.sha256(receive(pair.worker, len(there))).digest()

    threads = [
        threading.Thread(target=run_client),
        threading.Thread(target=run_worker),
        threading.Thread(target=pair.worker.sendall, args=(back,)),
    ]
    for thread in threads:
        thread.start()
    send_polling(pair.client, there)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert arrived["there"] == hashlib.sha256(there).digest()
    assert arrived["back"] == hashlib.sha256(back).digest()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_tiny_reads_lose_nothing(pair: Pair, size: int) -> None:
    data = random.Random(size).randbytes(50_000)
    pair.worker.sendall(data)
    assert receive_polling(pair.client, len(data), size) == data
    send_polling(pair.client, data, size)
    assert receive(pair.worker, len(data), size) == data


def test_parts_of_all_sizes_arrive_in_order(pair: Pair) -> None:
    rng = random.Random(3)
    sizes = [rng.choice([1, 9, 300, 16_383, 16_384, 16_385, 262_144, 300_001]) for _ in range(64)]
    parts = [memoryview(rng.randbytes(size)) for size in sizes]
    whole = b"".join(parts)
    received: list[bytes] = []
    thread = threading.Thread(target=lambda: received.append(receive(pair.worker, len(whole))))
    thread.start()
    while parts or pair.client.has_unsent:
        try:
            sent = pair.client.send(parts)
        except BlockingIOError:
            assert polled(pair.client, select.POLLOUT)
            continue
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if sent:
            parts[0] = parts[0][sent:]
    thread.join(PATIENCE_S)
    assert received == [whole]


def test_a_peer_that_does_not_read_is_not_waited_for(pair: Pair) -> None:
    piece = memoryview(bytes(1 << 20))
    taken = 0
    with pytest.raises(BlockingIOError):
        while taken < 1 << 30:
            taken += pair.client.send([piece])
    assert receive(pair.worker, taken // 2) == bytes(taken // 2)
    thread = threading.Thread(target=send_polling, args=(pair.client, b""))
    thread.start()
    assert receive(pair.worker, taken - taken // 2) == bytes(taken - taken // 2)
    thread.join(PATIENCE_S)
    assert not pair.client.has_unsent


def test_without_data_nothing_is_waited_for(pair: Pair) -> None:
    with pytest.raises(BlockingIOError):
        pair.client.recv_into(memoryview(bytearray(10)))
    pair.worker.settimeout(0.05)
    with pytest.raises(TimeoutError):
        pair.worker.recv_into(memoryview(bytearray(10)))


def test_what_polling_cannot_see_is_told(pair: Pair) -> None:
    data = bytes(range(200))
    pair.worker.sendall(data)
    assert polled(pair.client, select.POLLIN)
    room = memoryview(bytearray(200))
    got = 0
    while got < 200:
        assert pair.client.has_data or polled(pair.client, select.POLLIN)
        got += pair.client.recv_into(room[got : got + 3])
    assert bytes(room) == data
    with pytest.raises(BlockingIOError):
        pair.client.recv_into(memoryview(bytearray(10)))
    assert not pair.client.has_data


def test_the_end_comes_after_the_data_and_stays(pair: Pair) -> None:
    pair.worker.sendall(b"last words")
    pair.worker.close()
    assert receive_polling(pair.client, 10) == b"last words"
    for _ in range(2):
        assert pair.client.has_data or polled(pair.client, select.POLLIN)
        assert pair.client.recv_into(memoryview(bytearray(10))) == 0


def test_a_shutdown_wakes_a_reader(pair: Pair) -> None:
    ends: list[int] = []
    room = memoryview(bytearray(10))
    thread = threading.Thread(target=lambda: ends.append(pair.worker.recv_into(room)))
    thread.start()
    pair.worker.shutdown()
    thread.join(PATIENCE_S)
    assert ends == [0]
    pair.worker.shutdown()


def test_aborting_is_a_reset(pair: Pair) -> None:
    pair.client.abort_on_close()
    pair.client.close()
    with pytest.raises(ConnectionResetError):
        pair.worker.recv_into(memoryview(bytearray(10)))


def test_both_ends_know_the_same_certificate(certificates: Certificates) -> None:
    pair = tls_pair(certificates)
    assert len(pair.client.certificate_digest) == 32
    assert pair.client.certificate_digest == pair.worker.certificate_digest
    pair.client.close()
    pair.worker.close()


def test_drips_of_a_record_do_not_prolong_a_read(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = tls_pair(certificates)
    pair.worker.settimeout(10)
    clock = SimpleNamespace(monotonic=count(step=4).__next__)
    monkeypatch.setattr("app.rpc_backend.streams.tls.time", clock)
    monkeypatch.setattr(pair.worker, "_scratch", memoryview(bytearray(1)))
    with socket.socket(fileno=os.dup(pair.client.fileno())) as below:
        below.sendall(b"\x17\x03\x03\x10\x00" + bytes(20))
    with pytest.raises(TimeoutError):
        pair.worker.recv_into(memoryview(bytearray(10)))
    assert len(pair.worker_sock.recv(25)) > 20, "given up after some of the bytes"
    pair.client.close()
    pair.worker.close()


def test_a_forged_record_ends_a_tls_stream(certificates: Certificates) -> None:
    pair = tls_pair(certificates)
    pair.worker.sendall(b"right")
    pair.worker_sock.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert receive(pair.client, 5) == b"right"
    with pytest.raises(OSError, match=r"(?i)bad record mac"):
        pair.client.recv_into(memoryview(bytearray(10)))
    pair.client.close()
    pair.worker.close()


def client_end(stack: ExitStack) -> socket.socket:
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    endpoint = Endpoint("127.0.0.1", server.getsockname()[1])
    return stack.enter_context(connect(endpoint, time.monotonic() + PATIENCE_S))


def worker_end(stack: ExitStack) -> socket.socket:
    server = stack.enter_context(serving([NullDevice()]))
    stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
    eventually(lambda: server.n_clients == 1)
    (peer,) = server._peers
    return peer._sock


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other options")
@pytest.mark.parametrize("end", [client_end, worker_end])
def test_small_messages_leave_at_once_and_a_dead_machine_is_noticed_in_minutes(
    end: Callable[[ExitStack], socket.socket],
) -> None:
    with ExitStack() as stack:
        sock = end(stack)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        idle_s, interval_s, count = (
            sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names
        )
    # Less would end idle conversations when a switch restarts.
    assert 60 <= idle_s + interval_s * count <= 300


def test_options_that_a_platform_lacks_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"):
        monkeypatch.delattr(socket, name, raising=False)
    with socket.socket() as sock:
        tune(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
