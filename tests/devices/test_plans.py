"""Which compiled graphs stay: bounded by nodes, the least recently used go first."""

from dataclasses import dataclass, field

import pytest

from app.devices import plans
from app.devices.plans import Plans
from app.ggml.graph import Graph
from app.ggml.tensor import Buffer, new_tensor
from app.ggml.types import GGMLType


@dataclass(slots=True)
class FakePlan:
    last_run: int
    buffers: set[Buffer] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class FakeBuffer:
    size: int = 8


def graph(n_nodes: int) -> Graph:
    return Graph([new_tensor(GGMLType.F32, (1,)) for _ in range(n_nodes)], uid=1)


def test_hundreds_of_small_graphs_stay() -> None:
    kept, graphs = Plans[FakePlan](), [graph(24) for _ in range(400)]
    for i, each in enumerate(graphs):
        kept.add(each, FakePlan(i))
    assert all(each in kept for each in graphs)


def test_what_was_used_the_longest_time_ago_goes_for_the_nodes_of_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "MOST_NODES", 100)
    kept, graphs = Plans[FakePlan](), [graph(30), graph(30), graph(30)]
    for last_run, each in zip((2, 3, 1), graphs, strict=True):
        kept.add(each, FakePlan(last_run))
    new = graph(60)
    kept.add(new, FakePlan(4))
    assert set(kept) == {graphs[1], new}


def test_a_graph_that_is_too_large_stays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MOST_NODES", 100)
    kept, small, large = Plans[FakePlan](), graph(1), graph(101)
    kept.add(small, FakePlan(1))
    kept.add(large, FakePlan(2))
    assert set(kept) == {large}


def test_plans_of_a_buffer_are_forgotten_and_others_are_not() -> None:
    kept, one, other = Plans[FakePlan](), graph(1), graph(1)
    buffer = FakeBuffer()
    kept.add(one, FakePlan(1, {buffer}))
    kept.add(other, FakePlan(2, {FakeBuffer(9)}))
    kept.forget(buffer)
    assert set(kept) == {other}
