"""Every command in bytes: written out by hand from the protocol's description, and as stock peers
sent them.
"""

import struct
from typing import Final

import pytest

from app.errors import LlamaServeError
from app.rpc_backend.errors import LocalProtocolError, RemoteProtocolError
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.commands import Raw, Tail, command_by_number, command_of
from app.rpc_backend.wire.constants import VERSIONS, Cmd
from app.rpc_backend.wire.graph_codec import GraphCompute
from app.rpc_backend.wire.tensor import NULL_TENSOR, TENSOR_BYTES, WireTensor
from tests.helpers.rpc_frames import captured, tensor_bytes, u32, u64

TENSOR: Final = WireTensor(
    id=0x1122334455667788,
    type=12,
    buffer=0xA0,
    ne=(576, 64, 3, 1),
    nb=(144, 324, 20736, 62208),
    op=29,
    params=struct.pack("<16i", *range(16)),
    flags=16,
    src=(7, 8, 0, 0, 0, 0, 0, 0, 0, 9),
    view_src=5,
    view_offs=96,
    data=0xB0,
    name=b"blk.0",
    use_count=2,
)
RAW: Final = tensor_bytes(
    id=0x1122334455667788,
    type=12,
    buffer=0xA0,
    ne=(576, 64, 3, 1),
    nb=(144, 324, 20736, 62208),
    op=29,
    op_params=range(16),
    flags=16,
    src=(7, 8, 0, 0, 0, 0, 0, 0, 0, 9),
    view_src=5,
    view_offs=96,
    data=0xB0,
    name=b"blk.0",
    use_count=2,
)
OTHER: Final = NULL_TENSOR._replace(id=3, name=b"x" * 63)
RAW_OTHER: Final = tensor_bytes(id=3, name=b"x" * 63)
NOTHING: Final = bytes(TENSOR_BYTES)

BY_HAND: Final = [
    (m.AllocBuffer(1, 1 << 33), u32(1), u64(1 << 33)),
    (m.GetAlignment(2), u32(2)),
    (m.GetMaxSize(2), u32(2)),
    (m.BufferGetBase(0xDEAD), u64(0xDEAD)),
    (m.FreeBuffer(0xDEAD), u64(0xDEAD)),
    (m.BufferClear(0xDEAD, 255), u64(0xDEAD), b"\xff"),
    (m.SetTensor(TENSOR, 1, 64), RAW, b"\x01", u64(64)),
    (m.SetTensorHash(TENSOR, 64, 0xCBF29CE484222325), RAW, u64(64, 0xCBF29CE484222325)),
    (m.GetTensor(TENSOR, 4, 8), RAW, u64(4, 8)),
    (m.CopyTensor(TENSOR, OTHER), RAW, RAW_OTHER),
    (m.GetDeviceMemory(3), u32(3)),
    (m.InitTensor(TENSOR), RAW),
    (
        m.GetAllocSize(1, TENSOR, (OTHER, *(NULL_TENSOR,) * 9)),
        u32(1),
        RAW,
        RAW_OTHER,
        NOTHING * 9,
    ),
    (m.Hello(bytes(range(24))), bytes(range(24))),
    (m.DeviceCount(),),
    (m.MemsetTensor(TENSOR, 1, 2, 3), RAW, u64(1, 2), b"\x03"),
]
EXTENSIONS: Final = [
    (x.Extend(1, bytes(range(32))), b"\x01", bytes(range(32))),
    (x.Prove(bytes(range(32))), bytes(range(32))),
    (x.Ping(77), u64(77)),
    (x.DeviceFacts(1), u32(1)),
    (x.WaitBuffer(5), u64(5)),
    (x.OpenDoor(),),
    (
        x.PushTensor(TENSOR, 1, 2, 3, 50052, b"host".ljust(64, b"\0"), bytes(range(16))),
        RAW,
        u64(1, 2, 3),
        u32(50052),
        b"host",
        bytes(60),
        bytes(range(16)),
    ),
    (x.Deliver(bytes(range(16)), 7), bytes(range(16)), u64(7)),
    (x.TakeDelivery(TENSOR, 1, 2, 3), RAW, u64(1, 2, 3)),
]
ONLY_V7: Final = [
    (m.GraphRecompute(1), u32(1)),
    (GraphCompute(1, (3,), (OTHER,)), u32(1, 1), u64(3), u32(1), RAW_OTHER),
]
ONLY_V8: Final = [
    (m.GraphRecompute(1, 77), u32(1), u64(77)),
    (GraphCompute(1, (3,), (OTHER,), 77), u32(1), u64(77), u32(1), u64(3), u32(1), RAW_OTHER),
    (m.SetTensor2D(TENSOR, 1, 2, 3, 4), RAW, u64(1, 2, 3, 4)),
    (m.GetTensor2D(TENSOR, 1, 2, 3, 4), RAW, u64(1, 2, 3, 4)),
    (m.CommInit(1, 0, 2, 51052, b"host".ljust(64, b"\0")), u32(1, 0, 2, 51052), b"host", bytes(60)),
    (m.CommAllreduce(1, TENSOR), u32(1), RAW),
    (m.CommFree(1), u32(1)),
]
CASES: Final = [
    *((version, *case) for version in VERSIONS for case in BY_HAND),
    *((version, *case) for version in VERSIONS for case in EXTENSIONS),
    *((7, *case) for case in ONLY_V7),
    *((8, *case) for case in ONLY_V8),
]

REPLIES: Final = [
    (Cmd.ALLOC_BUFFER, m.AllocBufferReply(5, 6), u64(5, 6)),
    (Cmd.GET_ALIGNMENT, m.SizeReply(32), u64(32)),
    (Cmd.GET_MAX_SIZE, m.SizeReply(2**64 - 1), u64(2**64 - 1)),
    (Cmd.BUFFER_GET_BASE, m.SizeReply(9), u64(9)),
    (Cmd.SET_TENSOR_HASH, m.FlagReply(1), b"\x01"),
    (Cmd.COPY_TENSOR, m.FlagReply(0), b"\x00"),
    (Cmd.GET_DEVICE_MEMORY, m.DeviceMemoryReply(5, 6), u64(5, 6)),
    (Cmd.GET_ALLOC_SIZE, m.SizeReply(10), u64(10)),
    (Cmd.HELLO, m.HelloReply(8, 1, 2, 0, bytes(range(24))), b"\x08\x01\x02\x00" + bytes(range(24))),
    (Cmd.DEVICE_COUNT, m.DeviceCountReply(2), u32(2)),
    (Cmd.EXTEND, x.ExtendReply(1, bytes(range(32))), b"\x01" + bytes(range(32))),
    (Cmd.PROVE, x.ProveReply(1, b"p" * 32), b"\x01" + b"p" * 32),
    (Cmd.PING, x.Ping(77), u64(77)),
    (Cmd.WAIT_BUFFER, m.FlagReply(1), b"\x01"),
    (Cmd.OPEN_DOOR, x.DoorReply(bytes(range(16))), bytes(range(16))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"v{c[0]}-{type(c[1]).__name__}")
def test_requests_have_exactly_the_described_bytes(case: tuple[int, m.Message, bytes]) -> None:
    version, message, *parts = case
    command = command_of(message, version)
    body = b"".join(parts)
    assert command.request.pack(message) == body
    assert command.request.unpack(body) == message


@pytest.mark.parametrize("case", REPLIES, ids=lambda c: c[0].name)
def test_replies_have_exactly_the_described_bytes(case: tuple[Cmd, m.Message, bytes]) -> None:
    number, message, body = case
    for version in VERSIONS:
        command = command_by_number(number, version)
        assert command is not None
        assert not isinstance(command.response, Raw | None)
        assert command.response.pack(message) == body
        assert command.response.unpack(body) == message


@pytest.mark.parametrize("version", VERSIONS)
def test_every_command_of_a_version_is_covered_by_hand(version: int) -> None:
    covered = {command_of(case[1], version).number for case in CASES if case[0] == version}
    known = {number for number in Cmd if command_by_number(number, version) is not None}
    assert covered == known
    assert {n for n in known if n < x.FIRST_EXTENSION} == set(range(18 if version == 7 else 23))


STOCK: Final = [
    (version, number)
    for version in VERSIONS
    for number in Cmd
    if number < x.FIRST_EXTENSION and command_by_number(number, version) is not None
]


@pytest.mark.parametrize(("version", "number"), STOCK, ids=lambda v: getattr(v, "name", f"v{v}"))
def test_what_stock_peers_sent_is_read_and_written_back_unchanged(
    version: int, number: Cmd
) -> None:
    command, frames = command_by_number(number, version), captured(version)
    assert command is not None
    assert number.name in frames, "tests/golden/README.md says how to capture it"
    request, reply = frames[number.name]
    assert struct.unpack_from("<BQ", request) == (number, len(request) - 9)
    end = 9 + command.request.size if command.tail is Tail.DATA else len(request)
    message = command.request.unpack(request[9:end])
    assert command.request.pack(message) == request[9:end]
    assert (reply is None) == (command.response is None)
    if reply is None:
        return
    assert struct.unpack_from("<Q", reply) == (len(reply) - 8,)
    if isinstance(command.response, Raw | None):
        assert isinstance(message, m.GetTensor | m.GetTensor2D)
        assert len(reply) - 8 == message.reply_bytes
    else:
        assert command.response.pack(command.response.unpack(reply[8:])) == reply[8:]


@pytest.mark.parametrize("version", VERSIONS)
def test_stock_peers_sent_nothing_that_the_table_lacks(version: int) -> None:
    assert set(captured(version)) == {number.name for v, number in STOCK if v == version}


def test_the_fields_of_the_newest_commands_are_what_was_sent() -> None:
    """The capture's own arguments: pieces of 8 bytes, 16 apart, from byte 4 on; rank 1 of 2."""
    frames = captured(8)
    for name in ("SET_TENSOR_2D", "GET_TENSOR_2D"):
        command = command_by_number(Cmd[name], 8)
        assert command is not None
        message = command.request.unpack(frames[name][0][9 : 9 + command.request.size])
        assert isinstance(message, m.SetTensor2D | m.GetTensor2D)
        assert (message.offset, message.size, message.n_copies, message.stride) == (4, 8, 3, 16)
    assert frames["SET_TENSOR_2D"][0].endswith(b"abcdefghijklmnopqrstuvwx")
    joining = command_by_number(Cmd.COMM_INIT, 8)
    assert joining is not None
    init = joining.request.unpack(frames["COMM_INIT"][0][9:])
    assert isinstance(init, m.CommInit)
    assert (init.device, init.rank, init.world) == (0, 1, 2)
    assert init.host == b"127.0.0.1".ljust(64, b"\0")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stock_graph_reads_as_the_model_that_it_is(version: int) -> None:
    request, _ = captured(version)["GRAPH_COMPUTE"]
    command = command_by_number(10, version)
    assert command is not None
    graph = command.request.unpack(request[9:])
    assert isinstance(graph, GraphCompute)
    by_id = {tensor.id: tensor for tensor in graph.tensors}
    assert set(graph.node_ids) <= set(by_id)
    assert by_id[graph.node_ids[-1]].label == "result_output"
    assert "blk.4.ffn_down.weight" in {tensor.label for tensor in graph.tensors}
    assert (graph.uid != 0) == (version == 8)


def test_a_value_that_does_not_fit_its_field_is_named() -> None:
    message = m.AllocBuffer(1 << 32, 0)
    with pytest.raises(LlamaServeError, match="AllocBuffer"):
        command_of(message).request.pack(message)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_body_of_another_length_is_refused(version: int) -> None:
    for number in Cmd:
        command = command_by_number(number, version)
        if command is None or command.tail is Tail.GRAPH:
            continue
        with pytest.raises(RemoteProtocolError, match=str(command.request.size)):
            command.request.unpack(bytes(command.request.size + 1))


def test_version_7_lacks_the_requests_of_version_8() -> None:
    for message in (m.CommFree(0), m.SetTensor2D(TENSOR, 0, 0, 0, 0)):
        with pytest.raises(LocalProtocolError, match="version 7"):
            command_of(message, 7)


def test_version_7_has_no_room_for_a_uid() -> None:
    packed = command_of(m.GraphRecompute(1), 7).request.pack(m.GraphRecompute(1, 77))
    assert packed == u32(1)
