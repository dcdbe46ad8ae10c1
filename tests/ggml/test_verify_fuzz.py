"""Graphs with wrong numbers anywhere: refused with a typed error, or sound by a count of every
element's bytes that knows nothing of the verifier's rules.
"""

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import GraphError, UnsupportedError
from app.ggml.graph import Graph
from app.ggml.op_params import Params
from app.ggml.ops import VIEW_OPS, Op
from app.ggml.tensor import Tensor
from app.ggml.types import TRAITS, GGMLType
from app.ggml.verify import verify_graph
from tests.helpers.stock_graphs import NAMES, SizedBuffer, stock_graph

NUMBERS = st.one_of(
    st.sampled_from([-1, 0, 1, 2, 3, 4, 7, 31, 32, 64, 255, 4096, 2**31, 2**32 - 1, 2**40, 2**63]),
    st.integers(0, 300),
)


def _replaced(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


Mutation = Callable[[Tensor, list[Tensor]], None]


@st.composite
def mutations(draw: st.DrawFn) -> Mutation:
    """One change to one field of a tensor."""
    field = draw(
        st.sampled_from(["ne", "nb", "offset", "view_offs", "type", "op", "params", "src"])
    )
    at, value = draw(st.integers(0, 3)), draw(NUMBERS)
    other = draw(st.integers(0, 200))

    def mutate(tensor: Tensor, tensors: list[Tensor]) -> None:
        if field in ("ne", "nb"):
            setattr(tensor, field, _replaced(getattr(tensor, field), at, value))
        elif field in ("offset", "view_offs"):
            setattr(tensor, field, value)
        elif field == "type":
            tensor.type = list(GGMLType)[other % len(GGMLType)]
        elif field == "op":
            tensor.op = Op(other % len(Op))
        elif field == "params":
            raw = bytearray(tensor.params.raw)
            raw[4 * at : 4 * at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")
            tensor.params = Params(bytes(raw))
        else:
            chosen = None if other == 200 else tensors[other % len(tensors)]
            tensor.src = (*tensor.src[:at], chosen, *tensor.src[at + 1 :])

    return mutate


def _elements(tensor: Tensor) -> np.ndarray:
    """First byte of every element (every block of a quantised type), in no order."""
    traits = TRAITS[tensor.type]
    counts = (tensor.ne[0] // traits.block_size, *tensor.ne[1:])
    total = np.full((1, 1, 1, 1), tensor.offset, np.int64)
    for axis, (n, stride) in enumerate(zip(counts, tensor.nb, strict=True)):
        shape = [1, 1, 1, 1]
        shape[axis] = n
        total = total + (np.arange(n, dtype=np.int64) * stride).reshape(shape)
    return total.ravel()


def _assert_sound(graph: Graph) -> None:
    """No computed node touches a byte outside its buffers, and none writes a byte twice."""
    place = {id(node): index for index, node in enumerate(graph.nodes)}
    for index, node in enumerate(graph.nodes):
        assert all(place.get(id(s), -1) <= index for s in node.src)
        if node.op in VIEW_OPS:
            continue
        for tensor in (node, *node.src):
            if tensor is None:
                continue
            assert isinstance(tensor.buffer, SizedBuffer)
            at = _elements(tensor)
            if at.size:
                assert at.min() >= 0
                assert at.max() + TRAITS[tensor.type].type_size <= tensor.buffer.size
        written = np.sort(_elements(node))
        assert (np.diff(written) >= TRAITS[node.type].type_size).all()


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    changes=st.lists(st.tuples(st.integers(0, 200), mutations()), min_size=1, max_size=3),
)
def test_a_graph_with_wrong_numbers_is_refused_or_sound(
    name: str, changes: list[tuple[int, Mutation]]
) -> None:
    graph = stock_graph(name)
    tensors = graph.tensors()
    for index, mutate in changes:
        mutate(tensors[index % len(tensors)], tensors)
    try:
        verify_graph(graph)
    except (GraphError, UnsupportedError) as error:
        assert str(error).startswith("node ")
        return
    _assert_sound(graph)


def test_the_count_of_bytes_finds_stock_graphs_sound() -> None:
    for name in NAMES:
        _assert_sound(stock_graph(name))
