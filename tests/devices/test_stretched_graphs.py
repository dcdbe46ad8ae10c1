"""Shapes that no memory holds, made of strides of zero: refused, or done at once.

A few bytes that are looked at 2^31 times would keep a worker busy for years, or make a kernel take
memory for each look.
"""

import time
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Final

import numpy as np
import pytest

from app.devices.base import Device
from app.errors import LlamaServeError
from app.ggml.graph import Graph, next_uid
from app.ggml.tensor import Tensor
from app.ggml.types import TRAITS
from tests.devices.graphs import cpu
from tests.helpers.native import native_cpu
from tests.kernels.cases import CASES
from tests.kernels.harness import Case, Leaf, make_leaf, make_node, place

HUGE: Final = 2**31 - 1
Pick = tuple[int, int]


def _kinds() -> list[Case]:
    """One case of each operation, function and number of sources."""
    kinds: dict[object, Case] = {}
    for case in CASES:
        if case.inplace is None:
            blocks = tuple(s and (TRAITS[s.type].block_size, len(s.ne)) for s in case.sources)
            kinds.setdefault((case.op, case.params.raw[:4], blocks), case)
    return list(kinds.values())


def _picks(leaves: list[Leaf | None]) -> Iterator[tuple[Pick, ...]]:
    """Every dimension alone, and every two that are equally long, which may belong together."""
    size = {
        (s, d): leaf.seen.ne[d]
        for s, leaf in enumerate(leaves)
        if leaf is not None
        for d in range(4)
    }
    yield from ((pick,) for pick in size)
    yield from (pair for pair in combinations(size, 2) if 1 < size[pair[0]] == size[pair[1]])


def _stretched(case: Case, picks: tuple[Pick, ...]) -> tuple[list[Leaf | None], Tensor]:
    """Raises: GraphError, ValueError when the operation has no such shape."""
    rng = np.random.default_rng(0)
    leaves = [None if s is None else make_leaf(rng, s) for s in case.sources]
    for s, d in picks:
        leaf = leaves[s]
        assert leaf is not None
        ne, nb = list(leaf.seen.ne), list(leaf.seen.nb)
        ne[d], nb[d] = HUGE, 0
        leaf.seen.ne, leaf.seen.nb = (ne[0], ne[1], ne[2], ne[3]), (nb[0], nb[1], nb[2], nb[3])
    return leaves, make_node(case, [None if leaf is None else leaf.seen for leaf in leaves])


def _run(device: Device, leaves: list[Leaf | None], node: Tensor) -> None:
    held = [leaf for leaf in leaves if leaf is not None]
    place(device, [*(leaf.stored for leaf in held), *([] if node.view_src is not None else [node])])
    for leaf in held:
        leaf.seen.buffer, leaf.seen.offset = leaf.stored.buffer, leaf.stored.offset
        device.set_tensor(leaf.stored, leaf.data)
    if node.view_src is not None:
        node.buffer, node.offset = node.view_src.buffer, node.view_src.offset
    try:
        device.compute(Graph([*(leaf.seen for leaf in held), node], next_uid()))
    finally:
        assert node.buffer is not None
        device.free(node.buffer)


@pytest.mark.parametrize("open_device", [cpu, native_cpu])
def test_memory_that_is_looked_at_without_end_costs_no_time(
    open_device: Callable[[], Device],
) -> None:
    device = open_device()
    n_refused = 0
    for case in _kinds():
        leaves, _ = _stretched(case, ())
        for picks in _picks(leaves):
            try:
                leaves, node = _stretched(case, picks)
                if node.nbytes > 1 << 24:
                    continue
                begin = time.process_time()
                _run(device, leaves, node)
            except (LlamaServeError, ValueError, IndexError):
                n_refused += 1
                continue
            # A graph of a few hundred bytes; a look at each element would take seconds.
            assert time.process_time() - begin < 2, (case.name, picks)
    assert n_refused > 100
    device.close()
