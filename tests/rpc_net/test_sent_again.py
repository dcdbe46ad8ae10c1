"""Of the tensors that come with a graph only those are read that it needs, and of a graph that a
client of version 7 sends again none: what it was made of is compared.

Such a client, cutting matrices over workers, sends for every token hundreds of graphs of a few
nodes, each with the history of all before it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from app.devices.null import NullDevice
from app.ggml.op_params import Params
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire import tensor as wire_tensor
from app.rpc_backend.wire.constants import KEPT_GRAPHS
from app.rpc_backend.wire.graph_codec import GraphCompute
from app.rpc_backend.wire.tensor import NULL_TENSOR, WireTensor
from app.rpc_backend.worker import graphs
from app.rpc_backend.worker.budget import Budget
from app.rpc_backend.worker.session import SessionError
from tests.helpers.rpc_link import MemoryLink
from tests.rpc_net.test_session import graph_at

HISTORY: Final = tuple(NULL_TENSOR._replace(id=1000 + i, name=b"old") for i in range(500))
REMEMBERED_BYTES: Final = 2 * (800 + 296 + 8) + 40


@pytest.fixture
def device() -> NullDevice:
    return NullDevice(total=1 << 20)


@pytest.fixture
def link(device: NullDevice) -> MemoryLink:
    return MemoryLink([device], version=7)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids of the descriptions that were unpacked."""
    ids: list[int] = []
    unpack = wire_tensor._named

    def named(fields: tuple[int, ...]) -> WireTensor:
        ids.append(fields[0])
        return unpack(fields)

    monkeypatch.setattr(wire_tensor, "_named", named)
    return ids


def renumbered(message: GraphCompute, first: int) -> GraphCompute:
    """The graph of one node and its input under other ids."""
    x, node = message.tensors
    tensors = (x._replace(id=first), node._replace(id=first + 1, src=(first, *(0,) * 9)))
    return replace(message, node_ids=(first + 1,), tensors=tensors)


def changed(message: GraphCompute, index: int, **fields: object) -> GraphCompute:
    tensors = list(message.tensors)
    tensors[index] = tensors[index]._replace(**fields)  # type: ignore[arg-type]
    return replace(message, tensors=tuple(tensors))


def with_history(message: GraphCompute) -> GraphCompute:
    return replace(message, tensors=(*HISTORY, *message.tensors))


@pytest.mark.parametrize("version", [7, 8])
def test_history_is_not_read(device: NullDevice, read: list[int], version: int) -> None:
    link = MemoryLink([device], version)
    link.call(with_history(graph_at(link, link.alloc(128))))
    assert sorted(read) == [1, 2]
    assert len(device.graphs[0].nodes) == 1


def test_graphs_that_are_sent_again_in_turn_are_not_read_again(
    link: MemoryLink, device: NullDevice, read: list[int]
) -> None:
    place = link.alloc(128)
    token = [with_history(renumbered(graph_at(link, place, k), 10 * k)) for k in range(1, 40)]
    for message in token:
        link.call(message)
    assert len(read) == 2 * len(token)
    read.clear()
    for message in token:
        link.call(message)
    assert not read
    assert device.graphs[len(token) :] == device.graphs[: len(token)]
    assert len({graph.uid for graph in device.graphs}) == len(token)


def test_the_last_that_was_sent_is_run_again_even_if_it_was_known(
    link: MemoryLink, device: NullDevice
) -> None:
    first = renumbered(graph_at(link, link.alloc(128)), 10)
    for message in (first, renumbered(first, 20), first):
        link.call(message)
    link.call(m.GraphRecompute(0))
    assert device.graphs[3] is device.graphs[0]
    assert device.graphs[1] is not device.graphs[0]


CHANGES: Final[dict[str, Callable[[GraphCompute], GraphCompute]]] = {
    "parameters": lambda g: changed(g, -1, params=Params.pack("2f", 9.0, 0.0).raw),
    "a source's place": lambda g: changed(g, -2, data=g.tensors[-2].data + 4),
    "name": lambda g: changed(g, -1, name=b"another"),
    "flags": lambda g: changed(g, -1, flags=0),
    "an id of the history": lambda g: changed(g, 0, id=7777),
    "less history": lambda g: replace(g, tensors=g.tensors[1:]),
    "order": lambda g: replace(g, tensors=(g.tensors[1], g.tensors[0], *g.tensors[2:])),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_graph_that_differs_in_anything_that_matters_is_read(
    link: MemoryLink, device: NullDevice, read: list[int], change: Callable[..., GraphCompute]
) -> None:
    message = with_history(graph_at(link, link.alloc(132)))
    link.call(message)
    link.call(change(message))
    assert 2 in read[2:]
    assert device.graphs[1] is not device.graphs[0]
    link.call(message)
    assert len(device.graphs[2].nodes) == 1


def test_what_history_says_of_itself_does_not_matter(
    link: MemoryLink, device: NullDevice, read: list[int]
) -> None:
    message = with_history(graph_at(link, link.alloc(128)))
    link.call(message)
    link.call(changed(message, 3, op=99, type=99, buffer=5))
    assert len(read) == 2
    assert device.graphs[1] is device.graphs[0]


@pytest.mark.parametrize("key", [0, 1, 2, 1000])
def test_a_known_graph_with_an_id_that_stands_twice_is_refused(link: MemoryLink, key: int) -> None:
    message = with_history(graph_at(link, link.alloc(128)))
    link.call(message)
    with pytest.raises(SessionError, match=f"id {key}: expected a fresh one"):
        link.call(changed(message, 400, id=key))


def test_a_known_graph_is_checked_again_when_a_buffer_has_gone(link: MemoryLink) -> None:
    place = link.alloc(128)
    message = graph_at(link, place)
    link.call(message)
    link.call(m.FreeBuffer(place.handle))
    with pytest.raises(SessionError, match="not a buffer of this client"):
        link.call(message)


def test_version_8_keeps_what_the_client_s_uid_says_and_nothing_else(
    device: NullDevice, read: list[int]
) -> None:
    link = MemoryLink([device], version=8)
    message = replace(graph_at(link, link.alloc(128)), uid=0)
    link.call(message)
    link.call(message)
    assert len(read) == 4
    assert len(link.session.state.graphs) == 0


def test_the_oldest_go_when_many_are_remembered(
    link: MemoryLink, device: NullDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST_REMEMBERED", 3 * REMEMBERED_BYTES)
    message = graph_at(link, link.alloc(128))
    for first in (10, 20, 30, 40, 20, 50, 20):
        link.call(renumbered(message, first))
    assert len(link.session.state.graphs) == 3
    assert device.graphs[6] is device.graphs[4] is device.graphs[1]
    link.call(renumbered(message, 10))
    assert device.graphs[7] is not device.graphs[0]
    link.call(m.GraphRecompute(0))
    assert device.graphs[8] is device.graphs[7]


def test_no_more_are_remembered_than_version_8_keeps(link: MemoryLink) -> None:
    message = graph_at(link, link.alloc(128))
    for first in range(10, 10 + 2 * KEPT_GRAPHS + 20, 2):
        link.call(renumbered(message, first))
    assert len(link.session.state.graphs) == KEPT_GRAPHS


def test_one_graph_that_is_larger_than_what_is_remembered_is_the_last_all_the_same(
    link: MemoryLink, device: NullDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST_REMEMBERED", 1)
    message = graph_at(link, link.alloc(128))
    for first in (10, 20):
        link.call(renumbered(message, first))
    link.call(m.GraphRecompute(0))
    assert len(link.session.state.graphs) == 1
    assert device.graphs[2] is device.graphs[1]


def test_remembered_graphs_make_room_in_the_budget_but_not_the_last_of_another_device() -> None:
    devices = [NullDevice("A"), NullDevice("B")]
    budget = Budget((), 3 * REMEMBERED_BYTES)
    link = MemoryLink(devices, version=7, budget=budget)
    there = replace(graph_at(link, link.alloc(128, device=1)), device=1)
    here = graph_at(link, link.alloc(128))
    link.call(there)
    for first in (10, 20, 30, 40):
        link.call(renumbered(here, first))
    assert budget.used <= 3 * REMEMBERED_BYTES
    link.call(m.GraphRecompute(1))
    assert devices[1].graphs[1] is devices[1].graphs[0]
    link.session.close()
    assert budget.used == 0


def test_a_graph_that_names_one_node_very_often_is_counted_by_what_is_kept_of_it(
    device: NullDevice,
) -> None:
    budget = Budget((), 1 << 30)
    link = MemoryLink([device], version=7, budget=budget)
    message = changed(graph_at(link, link.alloc(128)), 1, flags=0)
    link.call(replace(message, node_ids=message.node_ids * 10_000))
    assert budget.used > 10_000 * 40
    link.session.close()
