"""What one client can ask of a worker, and what it cannot: each weak spot of the stock worker has
its test here. No sockets.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Final

import pytest

from app.devices.null import NullDevice
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.ops import FORBIDDEN_OPS, Op
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.constants import KEPT_GRAPHS, Cmd
from app.rpc_backend.wire.extensions import Announced
from app.rpc_backend.wire.graph_codec import GraphCompute, describe_graph
from app.rpc_backend.wire.tensor import NULL_TENSOR, Place, WireTensor
from app.rpc_backend.worker import graphs
from app.rpc_backend.worker.session import ALL_FIELDS, FIELDS, SessionError
from tests.helpers.rpc_frames import frame, tensor_bytes, u64
from tests.helpers.rpc_link import MemoryLink

F32: Final = GGMLType.F32
TOP: Final = 2**64 - 1


@pytest.fixture
def device() -> NullDevice:
    return NullDevice(total=1 << 20)


@pytest.fixture
def link(device: NullDevice) -> MemoryLink:
    return MemoryLink([device])


def vector(n: int = 16, name: str = "x") -> Tensor:
    return new_tensor(F32, (n,), name)


def graph_at(link: MemoryLink, place: Place, scale: float = 2.0) -> GraphCompute:
    """A graph of one SCALE whose input and result lie in a buffer."""
    b = GraphBuilder()
    graph = b.finish(b.scale(b.input(F32, (16,), "x"), scale))
    graph.tensors()[1].offset = 64
    return describe_graph(graph, 0, lambda t: Place(place.handle, place.address + t.offset))


def test_questions_about_the_device_are_answered(link: MemoryLink) -> None:
    assert link.call(m.DeviceCount()) == m.DeviceCountReply(1)
    assert link.call(m.GetAlignment(0)) == m.SizeReply(32)
    assert link.call(m.GetMaxSize(0)) == m.SizeReply(1 << 20)
    assert link.call(m.GetDeviceMemory(0)) == m.DeviceMemoryReply(1 << 20, 1 << 20)
    sources = (NULL_TENSOR,) * 10
    wire = link.put(vector(), Place(0, 0))
    assert link.call(m.GetAllocSize(0, wire, sources)) == m.SizeReply(64)


@pytest.mark.parametrize(
    "message",
    [
        m.GetAlignment(1),
        m.GetMaxSize(2**32 - 1),
        m.GetDeviceMemory(1),
        m.AllocBuffer(1, 8),
        GraphCompute(1, (), ()),
        m.GraphRecompute(1, 1),
        m.CommFree(1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_devices_that_do_not_exist_are_refused(link: MemoryLink, message: m.Message) -> None:
    with pytest.raises(SessionError, match=r"device \d+: this worker has 1"):
        link.call(message)


def test_two_devices_have_their_own_memory() -> None:
    small, large = NullDevice("A", total=100), NullDevice("B", total=1000)
    link = MemoryLink([small, large])
    assert link.call(m.DeviceCount()) == m.DeviceCountReply(2)
    assert link.call(m.AllocBuffer(0, 500)) == m.AllocBufferReply(0, 0)
    link.alloc(500, device=1)
    assert (len(small.buffers), len(large.buffers)) == (0, 1)


def test_a_copy_from_one_device_to_another_goes_through_the_worker() -> None:
    here, there = NullDevice("A"), NullDevice("B")
    link = MemoryLink([here, there])
    source = link.put(vector(), link.alloc(64, device=0))
    target = link.put(vector(), link.alloc(64, device=1))
    assert link.call(m.CopyTensor(source, target)) == m.FlagReply(1)
    assert (here.bytes_read, there.bytes_written) == (64, 64)


@pytest.mark.parametrize("size", [(1 << 20) + 1, 1 << 62, TOP])
def test_too_large_a_buffer_gets_no_handle(link: MemoryLink, size: int) -> None:
    assert link.call(m.AllocBuffer(0, size)) == m.AllocBufferReply(0, 0)
    assert link.call(m.DeviceCount()) == m.DeviceCountReply(1)


def test_addresses_never_overlap_and_are_aligned(link: MemoryLink) -> None:
    ranges = []
    for size in (1, 4096, 0, 100_000, 64):
        place = link.alloc(size)
        ranges.append((place.address, place.address + size))
        if size == 4096:
            link.call(m.FreeBuffer(place.handle))
    assert all(start % 4096 == 0 and start > 0 for start, _ in ranges)
    ranges.sort()
    assert all(a[1] < b[0] for a, b in pairwise(ranges))


def test_freeing_gives_the_memory_back(link: MemoryLink, device: NullDevice) -> None:
    place = link.alloc(1 << 20)
    assert link.call(m.AllocBuffer(0, 1)) == m.AllocBufferReply(0, 0)
    link.call(m.FreeBuffer(place.handle))
    assert not device.buffers
    with pytest.raises(SessionError, match="not a buffer of this client"):
        link.call(m.FreeBuffer(place.handle))


def test_leaving_frees_everything(link: MemoryLink, device: NullDevice) -> None:
    link.alloc(100)
    link.alloc(200)
    link.session.close()
    assert not device.buffers


def test_leaving_frees_the_rest_when_a_device_is_lost(
    link: MemoryLink, device: NullDevice, caplog: pytest.LogCaptureFixture
) -> None:
    link.alloc(100)
    device.lose("unplugged")
    link.session.close()
    assert "unplugged" in caplog.text


HANDLE_USES: Final[dict[str, Callable[[int], m.Message]]] = {
    "BUFFER_GET_BASE": m.BufferGetBase,
    "FREE_BUFFER": m.FreeBuffer,
    "BUFFER_CLEAR": lambda handle: m.BufferClear(handle, 0),
}


@pytest.mark.parametrize("use", HANDLE_USES.values(), ids=HANDLE_USES)
def test_handles_of_other_clients_and_made_up_ones_are_refused(
    device: NullDevice, use: Callable[[int], m.Message]
) -> None:
    theirs = MemoryLink([device]).alloc(64)
    for handle in (theirs.handle, 0, TOP, theirs.handle + 1000):
        with pytest.raises(SessionError, match="not a buffer of this client"):
            MemoryLink([device]).call(use(handle))


def touching(wire: WireTensor, size: int = 4) -> list[tuple[m.Message, bytes]]:
    """Every request that touches the memory of one tensor."""
    return [
        (m.SetTensor(wire, 0, 0), bytes(size)),
        (m.SetTensorHash(wire, 0, 1), b""),
        (m.GetTensor(wire, 0, size), b""),
        (m.CopyTensor(wire, wire), b""),
        (m.InitTensor(wire), b""),
        (m.MemsetTensor(wire, 0, size, 1), b""),
        (m.SetTensor2D(wire, 0, size, 1, 0), bytes(size)),
        (m.GetTensor2D(wire, 0, size, 1, 0), b""),
        (GraphCompute(0, (wire.id,), (wire,)), b""),
    ]


BAD_PLACES: Final[dict[str, Callable[[WireTensor], WireTensor]]] = {
    "null buffer, data": lambda w: w._replace(buffer=0),
    "unknown buffer": lambda w: w._replace(buffer=w.buffer + 77),
    "before the buffer": lambda w: w._replace(data=w.data - 1),
    "null data": lambda w: w._replace(data=0),
    "past the end": lambda w: w._replace(data=w.data + 1),
    "far past the end": lambda w: w._replace(data=TOP - 3),
    "huge shape": lambda w: w._replace(ne=(2**32 - 1,) * 4),
    "huge strides": lambda w: w._replace(ne=(1, 2, 1, 1), nb=(4, 2**32 - 1, 4, 4)),
    "broken row": lambda w: w._replace(type=int(GGMLType.Q4_0), ne=(16, 1, 1, 1)),
    "no such type": lambda w: w._replace(type=99),
    "no such operation": lambda w: w._replace(op=4242),
}


@pytest.mark.parametrize("change", BAD_PLACES.values(), ids=BAD_PLACES)
@pytest.mark.parametrize("which", range(len(touching(NULL_TENSOR))))
def test_memory_that_is_not_the_tensors_own_is_never_touched(
    device: NullDevice, change: Callable[[WireTensor], WireTensor], which: int
) -> None:
    link = MemoryLink([device])
    wire = change(link.put(vector(), link.alloc(64)))
    message, data = touching(wire)[which]
    with pytest.raises(SessionError):
        link.call(message, data)
    assert device.bytes_written == device.bytes_read == 0
    assert not device.graphs


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 65), (64, 1), (61, 4), (TOP, 1), (1, TOP), (TOP, TOP), (65, 0)]
)
def test_ranges_past_the_tensor_are_refused(device: NullDevice, offset: int, size: int) -> None:
    wire = (link := MemoryLink([device])).put(vector(), link.alloc(1024))
    requests: list[m.Message] = [
        m.GetTensor(wire, offset, size),
        m.MemsetTensor(wire, offset, size, 0),
        m.GetTensor2D(wire, offset, size, 1, 0),
        m.GetTensor2D(wire, offset, 1, size, 1),
    ]
    for message in requests:
        link = MemoryLink([device])
        with pytest.raises(SessionError):
            link.call(replace(message, tensor=link.put(vector(), link.alloc(1024))))  # type: ignore[type-var]
    assert device.bytes_read == 0


@pytest.mark.parametrize("size", [1 << 20, 1 << 63, TOP - 305])
def test_data_longer_than_its_tensor_ends_at_the_first_piece(device: NullDevice, size: int) -> None:
    link = MemoryLink([device])
    place = link.alloc(64)
    raw = tensor_bytes(id=1, buffer=place.handle, data=place.address, ne=(16, 1, 1, 1), nb=4)
    head = bytes([Cmd.SET_TENSOR]) + u64(305 + size) + raw + b"\0" + u64(0)
    with pytest.raises(SessionError, match="SET_TENSOR"):
        link.raw(head + bytes(1 << 18))
    assert device.bytes_written == 0


def test_copies_between_unequal_sizes_are_refused(link: MemoryLink) -> None:
    place = link.alloc(1024)
    small, large = link.put(vector(4), place), link.put(vector(64), place, 512)
    for source, target in ((small, large), (large, small)):
        with pytest.raises(SessionError, match="equal sizes"):
            MemoryLink.call(_fresh(link), m.CopyTensor(source, target))


def _fresh(link: MemoryLink) -> MemoryLink:
    """The same client's table behind a conversation that has not failed."""
    other = MemoryLink(link.session.state.devices)
    other.session.state.buffers = link.session.state.buffers
    return other


@pytest.mark.parametrize(
    ("size", "copies", "stride", "total"),
    [(4, 4, 8, 15), (4, 4, 2, 16), (1, 1 << 63, 0, 0), (0, 1 << 63, 0, 1)],
)
def test_strided_data_must_add_up(
    link: MemoryLink, size: int, copies: int, stride: int, total: int
) -> None:
    wire = link.put(vector(64), link.alloc(256))
    with pytest.raises(SessionError):
        link.call(m.SetTensor2D(wire, 0, size, copies, stride), bytes(total))


def test_a_graph_runs_and_runs_again_by_its_uid(link: MemoryLink, device: NullDevice) -> None:
    message = graph_at(link, link.alloc(128))
    link.call(message)
    link.call(m.GraphRecompute(0, message.uid))
    first, second = device.graphs
    assert first is second
    assert [node.op for node in first.nodes] == [Op.SCALE]
    assert first.uid not in (0, message.uid)
    with pytest.raises(SessionError, match=f"keeps no graph {message.uid + 1}"):
        link.call(m.GraphRecompute(0, message.uid + 1))


def test_a_graph_without_a_uid_is_not_kept(link: MemoryLink, device: NullDevice) -> None:
    link.call(replace(graph_at(link, link.alloc(128)), uid=0))
    assert device.graphs[0].uid == 0
    with pytest.raises(SessionError, match="keeps no graph 0"):
        link.call(m.GraphRecompute(0, 0))


def test_freeing_any_buffer_forgets_the_graphs(link: MemoryLink) -> None:
    message, other = graph_at(link, link.alloc(128)), link.alloc(8)
    link.call(message)
    link.call(m.FreeBuffer(other.handle))
    with pytest.raises(SessionError, match="keeps no graph"):
        link.call(m.GraphRecompute(0, message.uid))


def test_the_last_1024_different_graphs_are_kept(link: MemoryLink) -> None:
    message = graph_at(link, link.alloc(128))
    for uid in range(1, KEPT_GRAPHS + 1):
        link.call(replace(message, uid=uid))
    link.call(replace(message, uid=1))
    link.call(replace(message, uid=KEPT_GRAPHS + 1))
    assert len(link.session.state.graphs) == KEPT_GRAPHS
    for uid in (1, 3, KEPT_GRAPHS + 1):
        link.call(m.GraphRecompute(0, uid))
    with pytest.raises(SessionError, match="keeps no graph 2"):
        link.call(m.GraphRecompute(0, 2))


def test_kept_graphs_take_a_part_of_the_memory_only(
    link: MemoryLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "_most_tensors", lambda: 10)
    place, other = link.alloc(128), link.alloc(8)
    message = graph_at(link, place)
    assert len(message.tensors) == 2
    for uid in (1, 2, 3, 4, 5, 5, 3):
        link.call(replace(message, uid=uid))
    link.call(m.FreeBuffer(other.handle))
    for uid in range(1, 6):
        link.call(replace(message, uid=uid))
    with pytest.raises(SessionError, match="12 tensors in graphs to be kept: expected up to 10"):
        link.call(replace(message, uid=6))
    assert len(link.session.state.graphs) == 0


def test_version_7_keeps_the_last_graph_only(device: NullDevice) -> None:
    link = MemoryLink([device], version=7)
    place = link.alloc(128)
    with pytest.raises(SessionError, match="keeps no last graph"):
        _fresh_v7(link).call(m.GraphRecompute(0))
    link.call(graph_at(link, place, 2.0))
    link.call(graph_at(link, place, 3.0))
    link.call(m.GraphRecompute(0))
    assert device.graphs[2] is device.graphs[1]
    assert len(link.session.state.graphs) == 1


def _fresh_v7(link: MemoryLink) -> MemoryLink:
    return MemoryLink(link.session.state.devices, version=7)


def test_nodes_that_are_not_marked_are_left_out(link: MemoryLink, device: NullDevice) -> None:
    message = graph_at(link, link.alloc(128))
    *leaves, node = message.tensors
    link.call(replace(message, tensors=(*leaves, node._replace(flags=0))))
    assert device.graphs[0].nodes == []


BAD_GRAPHS: Final[dict[str, Callable[[GraphCompute], GraphCompute]]] = {
    "unknown node": lambda g: replace(g, node_ids=(99,)),
    "null node": lambda g: replace(g, node_ids=(0,)),
    "node twice": lambda g: replace(g, node_ids=g.node_ids * 2),
    "id 0": lambda g: _change(g, 0, id=0),
    "id twice": lambda g: _change(g, 0, id=2),
    "unknown source": lambda g: _change(g, 1, src=(77, *(0,) * 9)),
    "itself as source": lambda g: _change(g, 1, src=(2, *(0,) * 9)),
    "itself as view source": lambda g: _change(g, 1, view_src=2),
    "later source": lambda g: replace(g, tensors=g.tensors[::-1]),
    "no source": lambda g: _change(g, 1, src=(0,) * 10),
    "source without memory": lambda g: _change(g, 0, buffer=0, data=0),
    "data without buffer": lambda g: _change(g, 0, buffer=0),
    "another shape": lambda g: _change(g, 1, ne=(8, 1, 1, 1)),
    "another type": lambda g: _change(g, 1, type=int(GGMLType.I8)),
    "gaps in the result": lambda g: _change(g, 1, ne=(4, 2, 1, 1), nb=(4, 32, 64, 64)),
    **{
        op.name: (lambda g, op=op: _change(g, 1, op=int(op)))  # type: ignore[misc]
        for op in sorted(FORBIDDEN_OPS)
    },
}


def _change(graph: GraphCompute, index: int, **fields: object) -> GraphCompute:
    tensors = list(graph.tensors)
    tensors[index] = tensors[index]._replace(**fields)  # type: ignore[arg-type]
    return replace(graph, tensors=tuple(tensors))


@pytest.mark.parametrize("change", BAD_GRAPHS.values(), ids=BAD_GRAPHS)
def test_illegal_graphs_never_reach_the_device(
    link: MemoryLink, device: NullDevice, change: Callable[[GraphCompute], GraphCompute]
) -> None:
    message = graph_at(link, link.alloc(128))
    with pytest.raises(SessionError, match="GRAPH_COMPUTE"):
        link.call(change(message))
    assert not device.graphs


def test_a_graph_does_not_reach_into_another_device() -> None:
    here, there = NullDevice("A"), NullDevice("B")
    link = MemoryLink([here, there])
    message = graph_at(link, link.alloc(128, device=1))
    with pytest.raises(SessionError, match="no buffer"):
        link.call(message)
    assert not here.graphs


def test_what_came_before_a_node_s_sources_is_history(link: MemoryLink, device: NullDevice) -> None:
    place = link.alloc(64)
    b = GraphBuilder()
    graph = b.finish(b.scale(b.scale(b.scale(b.input(F32, (16,), "x"), 2.0), 3.0), 4.0))
    whole = describe_graph(graph, 0, lambda _: place)
    x, first, *_ = whole.tensors
    elsewhere = (x._replace(type=99), first._replace(buffer=12345))
    link.call(replace(whole, node_ids=whole.node_ids[-1:], tensors=elsewhere + whole.tensors[2:]))
    (node,) = device.graphs[-1].nodes
    assert [leaf.src for leaf in device.graphs[-1].leaves()] == [()]
    assert node.params.raw == graph.nodes[-1].params.raw


def test_a_long_chain_of_views_does_not_exhaust_the_stack(link: MemoryLink) -> None:
    place = link.alloc(64)
    b = GraphBuilder()
    x = b.input(F32, (16,), "x")
    for _ in range(5000):
        x = b.reshape(x, 16)
    graph = b.finish(x)
    link.call(describe_graph(graph, 0, lambda _: place))


def test_an_offer_of_rdma_is_declined_politely(device: NullDevice) -> None:
    link = MemoryLink([device])
    link.session = type(link.session)([device], 8)
    answer = link.raw(frame(Cmd.HELLO, b"\x01" * 24))
    assert answer[8:] == bytes([8, 0, 0, Announced.EXTENDED]) + bytes(24)


def test_a_bug_in_a_device_ends_one_conversation_with_a_trace(
    link: MemoryLink,
    device: NullDevice,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(graph: Graph) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(device, "compute", broken)
    message = graph_at(link, link.alloc(128))
    with caplog.at_level(logging.ERROR), pytest.raises(SessionError, match="a bug"):
        link.call(message)
    assert "ZeroDivisionError" in caplog.text
    assert MemoryLink([device]).call(m.DeviceCount()) == m.DeviceCountReply(1)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (logging.INFO, ""),
        (logging.DEBUG, "client: FREE_BUFFER"),
        (FIELDS, "client: FREE_BUFFER FreeBuffer(buffer="),
        (ALL_FIELDS, "client: FREE_BUFFER FreeBuffer(buffer="),
    ],
)
def test_the_log_shows_as_much_of_a_request_as_is_asked_for(
    link: MemoryLink, caplog: pytest.LogCaptureFixture, level: int, expected: str
) -> None:
    place = link.alloc(64)
    wire = link.put(vector(name="w" * 60), place)
    caplog.set_level(level, "app.rpc_backend.worker.session")
    link.call(m.CopyTensor(wire, wire))
    link.call(m.FreeBuffer(place.handle))
    lines = [record.getMessage() for record in caplog.records]
    assert (lines[-1] if lines else "").startswith(expected)
    if lines:
        assert lines[0].endswith({FIELDS: "…", ALL_FIELDS: "use_count=0))"}.get(level, "TENSOR"))
