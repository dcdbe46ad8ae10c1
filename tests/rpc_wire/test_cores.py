"""The two cores joined in memory: order, states, and what ends a conversation."""

import random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.rpc_backend.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    VersionMismatchError,
)
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.client_core import ClientCore, Reply
from app.rpc_backend.wire.constants import CHUNK_BYTES, MAX_GRAPH_BYTES, VERSIONS, Cmd
from app.rpc_backend.wire.tensor import NULL_TENSOR
from app.rpc_backend.wire.worker_core import Request, WorkerCore
from tests.helpers.rpc_frames import HELLO, frame, response, tensor_bytes, u32, u64


def put(core: ClientCore | WorkerCore, data: bytes) -> int:
    """Give a core as much as it has room for; return how much that is."""
    room = core.writable()
    n = min(len(room), len(data))
    assert n > 0
    room[:n] = data[:n]
    room.release()
    core.wrote(n)
    return n


def requests(core: WorkerCore, data: bytes, portion: int = 1 << 20) -> list[Request]:
    """Give bytes to a worker's core in portions and return what it reads."""
    found: list[Request] = []
    while data:
        data = data[put(core, data[:portion]) :]
        while (request := core.next_request()) is not None:
            found.append(request)
    return found


def open_pair(version: int) -> tuple[ClientCore, WorkerCore]:
    """Return both cores after HELLO."""
    client, worker = ClientCore(), WorkerCore(version)
    (hello,) = requests(worker, client.hello())
    assert hello.message == m.Hello()
    put(client, worker.reply(m.HelloReply(*VERSIONS[version])))
    reply = client.next_reply()
    assert reply is not None
    assert client.version == VERSIONS[version]
    return client, worker


@pytest.mark.parametrize("version", VERSIONS)
def test_replies_match_requests_in_order(version: int) -> None:
    client, worker = open_pair(version)
    asked = [m.GetAlignment(0), m.GetTensor(NULL_TENSOR, 0, 5), m.DeviceCount()]
    sent = b"".join(client.request(message)[0] for message in asked)
    assert client.n_expected == 3
    assert [r.message for r in requests(worker, sent)] == asked
    answers = worker.reply(m.SizeReply(32)) + worker.reply_header(5) + b"hello"
    put(client, answers + worker.reply(m.DeviceCountReply(2)))
    bodies = []
    while (reply := client.next_reply()) is not None:
        bodies.append(reply.body)
    assert bodies == [m.SizeReply(32), bytearray(b"hello"), m.DeviceCountReply(2)]
    assert client.n_expected == 0


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 400))
def test_portions_do_not_matter(portion: int) -> None:
    _, worker = open_pair(8)
    data = random.Random(portion).randbytes(1000)
    sent = frame(Cmd.SET_TENSOR, tensor_bytes(id=1), b"\0", u64(7), data)
    sent += frame(Cmd.GET_ALIGNMENT, u32(1)) + frame(Cmd.DEVICE_COUNT)
    first, *rest = requests(worker, sent, portion)
    assert isinstance(first.message, m.SetTensor)
    assert first.message.offset == 7
    assert first.chunk is not None
    assert bytes(first.chunk.data) == data
    assert first.chunk.is_last
    assert [r.message for r in rest] == [m.GetAlignment(1), m.DeviceCount()]


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 5])
def test_data_arrives_in_chunks_that_add_up(size: int) -> None:
    client, worker = open_pair(8)
    data = random.Random(size).randbytes(size)
    head, expected = client.request(m.SetTensor(NULL_TENSOR, 1, 0), size)
    assert expected is None
    found = requests(worker, head + data)
    chunks = [r.chunk for r in found if r.chunk is not None]
    assert len(chunks) == len(found)
    assert b"".join(chunk.data for chunk in chunks) == data
    assert max(len(chunk.data) for chunk in chunks) <= CHUNK_BYTES
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    at = 0
    for chunk in chunks:
        assert (chunk.at, chunk.total) == (at, size)
        at += len(chunk.data)


BAD_STARTS: Final = {
    "no HELLO": frame(Cmd.DEVICE_COUNT),
    "short HELLO": frame(Cmd.HELLO, bytes(23)),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("start", BAD_STARTS.values(), ids=BAD_STARTS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_worker_wants_hello_first(start: bytes, version: int) -> None:
    worker = WorkerCore(version)
    with pytest.raises(RemoteProtocolError):
        requests(worker, start)
    with pytest.raises(LocalProtocolError):
        worker.next_request()


BAD_REQUESTS: Final = {
    "second HELLO": HELLO,
    "command 23": frame(23),
    "command 255": frame(255),
    "long fixed body": frame(Cmd.GET_ALIGNMENT, bytes(5)),
    "short fixed body": frame(Cmd.GET_ALIGNMENT, bytes(3)),
    "short SET_TENSOR": frame(Cmd.SET_TENSOR, bytes(304)),
    "short graph": frame(Cmd.GRAPH_COMPUTE, bytes(11)),
    "long graph": bytes([Cmd.GRAPH_COMPUTE]) + u64(MAX_GRAPH_BYTES + 1),
    "length 2^63": bytes([Cmd.GET_TENSOR]) + u64(1 << 63),
}


@pytest.mark.parametrize("data", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_in_the_table_ends_the_conversation(data: bytes, version: int) -> None:
    _, worker = open_pair(version)
    with pytest.raises(RemoteProtocolError):
        requests(worker, data)


@pytest.mark.parametrize("number", range(18, 23))
def test_version_7_ends_where_version_8_goes_on(number: int) -> None:
    _, worker = open_pair(7)
    with pytest.raises(RemoteProtocolError, match=f"command {number}"):
        requests(worker, bytes([number]) + u64(4) + bytes(4))


def test_a_length_of_2_to_the_63_is_not_waited_for_in_memory() -> None:
    _, worker = open_pair(8)
    head = bytes([Cmd.SET_TENSOR]) + u64(1 << 63) + tensor_bytes() + b"\0" + u64(0)
    assert requests(worker, head) == []
    assert len(worker.writable()) <= CHUNK_BYTES


def test_a_worker_does_not_answer_what_was_not_asked() -> None:
    _, worker = open_pair(8)
    with pytest.raises(LocalProtocolError):
        worker.reply(m.SizeReply(1))
    requests(worker, frame(Cmd.GET_ALIGNMENT, u32(0)))
    with pytest.raises(LocalProtocolError):
        worker.reply_header(8)


@pytest.mark.parametrize(
    ("version", "accepted"),
    [
        ((7, 0, 0), True),
        ((7, 0, 9), True),
        ((8, 0, 0), True),
        ((8, 1, 0), False),
        ((6, 0, 1), False),
        ((9, 0, 0), False),
        ((0, 0, 0), False),
    ],
)
def test_a_client_takes_the_versions_that_a_stock_client_would(
    version: tuple[int, int, int], accepted: bool
) -> None:
    client = ClientCore()
    client.hello()
    put(client, response(bytes([*version, 0]) + bytes(24)))
    if accepted:
        assert client.next_reply() is not None
        assert client.version == version
    else:
        text = ".".join(map(str, version))
        with pytest.raises(VersionMismatchError, match=rf"{text}.*7\.0\.0 and 8\.0\.0"):
            client.next_reply()


def test_a_client_does_not_speak_before_hello_is_answered() -> None:
    client = ClientCore()
    with pytest.raises(LocalProtocolError):
        client.request(m.DeviceCount())
    client.hello()
    with pytest.raises(LocalProtocolError):
        client.request(m.DeviceCount())


def test_a_capability_offer_is_ignored() -> None:
    client = ClientCore()
    assert client.hello() == HELLO
    put(client, response(b"\x08\0\0\0" + b"\xff" * 24))
    assert client.next_reply() is not None


def _reply_after(client: ClientCore, data: bytes) -> Reply | None:
    put(client, data)
    return client.next_reply()


@pytest.mark.parametrize("size", [0, 7, 9, 1 << 63, 2**64 - 1])
def test_a_reply_of_another_size_is_refused_before_it_is_read(size: int) -> None:
    client, _ = open_pair(8)
    client.request(m.GetAlignment(0))
    with pytest.raises(RemoteProtocolError, match=f"GET_ALIGNMENT: size field {size}"):
        _reply_after(client, u64(size))
    with pytest.raises(LocalProtocolError):
        client.request(m.DeviceCount())


def test_a_reply_that_nobody_asked_for_is_refused() -> None:
    client, _ = open_pair(8)
    with pytest.raises(RemoteProtocolError, match="no reply is due"):
        _reply_after(client, b"\0")


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=80))
def test_garbage_from_a_worker_is_refused_or_read_but_nothing_else(data: bytes) -> None:
    client, _ = open_pair(8)
    client.request(m.GetAlignment(0))
    client.request(m.GetTensor(NULL_TENSOR, 0, 3))
    try:
        if data:
            put(client, data)
        while client.next_reply() is not None:
            pass
    except RemoteProtocolError:
        return
    assert client.n_expected > 0 or data.startswith(u64(8))


def test_data_belongs_to_requests_that_take_it() -> None:
    client, _ = open_pair(8)
    with pytest.raises(LocalProtocolError):
        client.request(m.DeviceCount(), 4)
    with pytest.raises(LocalProtocolError):
        client.request(m.Hello())
