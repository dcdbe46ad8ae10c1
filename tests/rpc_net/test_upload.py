"""Weights on their way to a worker: offers ahead of answers, bytes only for what is missing."""

import socket
import threading

import pytest

from app.devices.base import Weight
from app.errors import DeviceLostError
from app.ggml.tensor import new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client import upload
from app.rpc_backend.client.connection import ClientSettings, WorkerConnection
from app.rpc_backend.client.endpoint import parse_endpoint
from app.rpc_backend.client.upload import Upload
from app.rpc_backend.wire.constants import HASH_THRESHOLD_BYTES
from app.rpc_backend.wire.fnv import fnv1a_64
from app.rpc_backend.wire.messages import GetAlignment, SizeReply
from app.rpc_backend.wire.tensor import Place, WireTensor, to_wire
from tests.helpers.fake_worker import fake_worker, greet, read, wait_for_end
from tests.helpers.rpc_frames import response
from tests.helpers.weights import Arrivals

SIZE = 1000
SETTINGS = ClientSettings(hash_threshold_bytes=100)
SET_TENSOR, SET_TENSOR_HASH = 6, 7
OFFER_BYTES = 9 + 296 + 8 + 8
HEAD_BYTES = 9 + 296 + 1 + 8
CACHE_FLAG = 9 + 296
ASK_BYTES = 9 + 4
NO, YES = response(b"\x00"), response(b"\x01")


def data_of(i: int, size: int = SIZE) -> bytes:
    return bytes([i % 256]) * size


def weight_at(
    i: int, size: int = SIZE, arrived: Arrivals | None = None
) -> tuple[WireTensor, Weight]:
    tensor = new_tensor(GGMLType.I8, (size,), f"w{i}")
    data = data_of(i, size)
    weight = Weight(tensor, memoryview(data), lambda: fnv1a_64(data), arrived or Arrivals())
    return to_wire(tensor, Place(1, 64)), weight


def connect(endpoint: str, settings: ClientSettings = SETTINGS) -> WorkerConnection:
    return WorkerConnection(parse_endpoint(endpoint), settings)


def read_offer(sock: socket.socket) -> int:
    """Read an offer and return its hash."""
    frame = read(sock, OFFER_BYTES)
    assert frame[0] == SET_TENSOR_HASH
    return int.from_bytes(frame[-8:], "little")


def read_data(sock: socket.socket, size: int = SIZE) -> tuple[int, bytes]:
    """Read the bytes of a weight and return the cache flag before them."""
    frame = read(sock, HEAD_BYTES + size)
    assert frame[0] == SET_TENSOR
    return frame[CACHE_FLAG], frame[HEAD_BYTES:]


def test_many_offers_are_on_their_way_before_the_first_answer() -> None:
    arrivals = [Arrivals() for _ in range(30)]
    sent: list[tuple[int, bytes]] = []

    def script(sock: socket.socket) -> None:
        greet(sock)
        offered = [read_offer(sock) for _ in arrivals]
        assert offered == [fnv1a_64(data_of(i)) for i in range(30)]
        sock.sendall(b"".join(NO if i % 3 else YES for i in range(30)))
        sent.extend(read_data(sock) for i in range(30) if i % 3)
        wait_for_end(sock)

    with fake_worker(script) as endpoint:
        connection = connect(endpoint)
        Upload(connection).run(weight_at(i, arrived=a) for i, a in enumerate(arrivals))
        connection.close()
    assert sent == [(1, data_of(i)) for i in range(30) if i % 3]
    for i, told in enumerate(arrivals):
        assert (told.n_had, told.n_sent) == ((0, SIZE) if i % 3 else (SIZE, 0))


def test_offers_do_not_run_ahead_without_end() -> None:
    n, answered = 300, []

    def script(sock: socket.socket) -> None:
        greet(sock)
        for i in range(n):
            read_offer(sock)
            if i >= 40:
                answered.append(i)
                sock.sendall(YES)
        answered.extend(range(40))
        sock.sendall(YES * 40)
        wait_for_end(sock)

    def counted(i: int) -> tuple[WireTensor, Weight]:
        assert i - len(answered) <= upload._MAX_OFFERS + 1
        return weight_at(i)

    with fake_worker(script) as endpoint:
        connection = connect(endpoint)
        Upload(connection).run(counted(i) for i in range(n))
        connection.close()


def test_small_weights_go_as_they_are_and_are_not_kept() -> None:
    got = []

    def script(sock: socket.socket) -> None:
        greet(sock)
        got.append(read_data(sock, 99))
        wait_for_end(sock)

    with fake_worker(script) as endpoint:
        connection = connect(endpoint)
        run = Upload(connection)
        arrived = Arrivals()
        run.run([weight_at(1, 99, arrived)])
        connection.close()
    assert got == [(0, data_of(1, 99))]
    assert arrived.told == [(0, 99, False)]


def test_a_stock_worker_is_asked_about_what_a_stock_client_asks() -> None:
    with fake_worker(greet_and_wait) as endpoint:
        connection = connect(endpoint, ClientSettings())
        assert connection.hash_threshold_bytes == HASH_THRESHOLD_BYTES
        connection.close()


def greet_and_wait(sock: socket.socket) -> None:
    greet(sock)
    wait_for_end(sock)


def test_bytes_are_told_of_as_they_leave() -> None:
    size, told = 64 << 20, threading.Event()

    class Noting(Arrivals):
        def __call__(self, start: int, end: int, had: bool) -> None:
            super().__call__(start, end, had)
            told.set()

    arrived = Noting()

    def script(sock: socket.socket) -> None:
        greet(sock)
        read_offer(sock)
        sock.sendall(NO)
        assert told.wait(60), "nothing was told before all of it was taken"
        left = HEAD_BYTES + size + ASK_BYTES
        while left:
            left -= len(sock.recv(min(left, 1 << 20)))
        sock.sendall(response(bytes(8)))

    with fake_worker(script) as endpoint:
        connection = connect(endpoint)
        run = Upload(connection)
        run.run([weight_at(1, size, arrived)])
        run.wait(connection.ask(GetAlignment(0), SizeReply))
        connection.close()
    starts, ends, had = zip(*arrived.told, strict=True)
    assert (starts[0], ends[-1]) == (0, size)
    assert starts[1:] == ends[:-1]
    assert not any(had)


@pytest.mark.parametrize("n_answers", [0, 1])
def test_a_worker_that_goes_away_ends_the_upload(n_answers: int) -> None:
    def script(sock: socket.socket) -> None:
        greet(sock)
        for _ in range(10):
            read_offer(sock)
        sock.sendall(NO * n_answers)

    with fake_worker(script) as endpoint:
        connection = connect(endpoint)
        with pytest.raises(DeviceLostError, match="RPC worker"):
            Upload(connection).run(weight_at(i) for i in range(10))
        connection.close()
