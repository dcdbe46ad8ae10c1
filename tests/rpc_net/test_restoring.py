"""Weights that are restored beside one another: replies in the order of requests, whatever ends
first, and nothing else before they are there.
"""

import threading
from collections.abc import Iterator

import pytest

from app.devices.null import NullDevice
from app.errors import DeviceLostError
from app.ggml.tensor import new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.greeting import Credentials, greet
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.wire.tensor import WireTensor
from app.rpc_backend.worker.file_pieces import Write
from app.rpc_backend.worker.session import SessionError
from app.rpc_backend.worker.tensor_cache import CacheWriter
from tests.helpers.rpc_link import MemoryLink, received

N, SIZE = 40, 100
LOST = 30


class Store:
    """Has data of even hashes, fails for `LOST`; the first one is there only after the second."""

    def __init__(self) -> None:
        self.first_began = threading.Event()
        self.second_done = threading.Event()
        self.restored: list[int] = []

    def restore(self, hash_: int, size: int, write: Write) -> bool:
        """Look for data."""
        if hash_ == 0:
            self.first_began.set()
            assert self.second_done.wait(60), "the second one waits for the first"
        if hash_ == LOST:
            raise DeviceLostError("out of order")
        if hash_ % 2 == 0:
            write(bytes([hash_]) * size, 0)
        self.restored.append(hash_)
        if hash_ == 1:
            self.second_done.set()
        return hash_ % 2 == 0

    def writer(self, total: int) -> CacheWriter | None:
        """Keep nothing."""
        return None


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def device() -> NullDevice:
    return NullDevice()


@pytest.fixture
def link(store: Store, device: NullDevice) -> Iterator[MemoryLink]:
    link = MemoryLink([device], cache=store)
    yield link
    link.session.close()


def tensors(link: MemoryLink, n: int = N) -> list[WireTensor]:
    place = link.alloc(n * SIZE)
    return [link.put(new_tensor(GGMLType.I8, (SIZE,), f"w{i}"), place, i * SIZE) for i in range(n)]


def ask(link: MemoryLink, requests: list[m.Message]) -> list[object]:
    """Send everything at once and return the replies in the order in which they came."""
    answer = link.raw(b"".join(link.core.request(request)[0] for request in requests))
    return [reply.body for reply in received(link.core, answer)]


def test_replies_come_in_order_whatever_is_there_first(link: MemoryLink) -> None:
    offers: list[m.Message] = []
    for i, tensor in enumerate(tensors(link, LOST)):
        offers += [m.InitTensor(tensor), m.SetTensorHash(tensor, 0, i)]
    assert ask(link, offers) == [m.FlagReply(1 - i % 2) for i in range(LOST)]


def test_what_follows_finds_every_weight_in_its_place(link: MemoryLink, store: Store) -> None:
    wires = tensors(link, 8)
    offers: list[m.Message] = [m.SetTensorHash(wire, 0, i) for i, wire in enumerate(wires)]
    *_, last = ask(link, [*offers, m.GetDeviceMemory(0)])
    assert isinstance(last, m.DeviceMemoryReply)
    assert sorted(store.restored) == list(range(8))


def test_a_restore_that_fails_is_told_in_its_place(link: MemoryLink) -> None:
    def call(message: m.Message) -> m.Message:
        reply = link.call(message)
        assert reply is not None and not isinstance(reply, bytearray)
        return reply

    greet(call, link.core, Credentials())
    offers = [m.SetTensorHash(tensor, 0, i) for i, tensor in enumerate(tensors(link))]
    replies = ask(link, [*offers, x.Ping(7)])
    assert replies[-1] == x.Ping(7)
    failed = replies[LOST]
    assert isinstance(failed, x.ErrorReply)
    assert "SET_TENSOR_HASH: out of order" in failed.text
    others = [reply for i, reply in enumerate(replies[:-1]) if i != LOST]
    assert others == [m.FlagReply(1 - i % 2) for i in range(N) if i != LOST]


def test_a_stock_client_is_closed_after_the_replies_before_the_failure(link: MemoryLink) -> None:
    offers = [m.SetTensorHash(tensor, 0, LOST - 4 + i) for i, tensor in enumerate(tensors(link, 8))]
    sent: list[bytes] = []
    with pytest.raises(SessionError, match="SET_TENSOR_HASH: out of order"):
        sent.extend(bytes(piece) for piece in begin(link, *offers))
    assert sent == [bytes([1, *bytes(7), 1 - i % 2]) for i in range(4)]


def begin(link: MemoryLink, *requests: m.Message) -> Iterator[Body]:
    """Let the worker read requests; what it answers comes as it is taken."""
    frames = b"".join(link.core.request(request)[0] for request in requests)
    room = link.session.writable()
    room[: len(frames)] = frames
    room.release()
    return link.session.wrote(len(frames))


def test_memory_is_freed_only_after_what_is_being_restored_into_it(
    link: MemoryLink, store: Store, device: NullDevice
) -> None:
    wires = tensors(link, 2)
    pieces = begin(link, m.SetTensorHash(wires[0], 0, 2), m.SetTensorHash(wires[1], 0, 0))
    next(pieces)
    assert store.first_began.wait(60)
    del pieces
    closing = threading.Thread(target=link.session.close)
    closing.start()
    assert device.calls["free"] == 0
    store.second_done.set()
    closing.join()
    assert store.restored == [2, 0]
    assert device.calls["free"] == 1
