"""Tensor layout against numpy's own idea of strides, and the tables of types."""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from app.errors import GraphError
from app.ggml.op_params import AttentionParams, Params, RopeParams
from app.ggml.ops import Op
from app.ggml.tensor import Shape, Tensor, contiguous_strides, make_shape, new_tensor
from app.ggml.types import TRAITS, GGMLType, row_size, type_from_name

SHAPES = st.tuples(*[st.integers(1, 4)] * 4)
STRIDES = st.tuples(*[st.integers(0, 40)] * 4)


def _addresses(ne: Shape, nb: Shape) -> np.ndarray:
    grids = np.meshgrid(*[np.arange(n) for n in ne], indexing="ij")
    total: np.ndarray = np.sum([g * stride for g, stride in zip(grids, nb, strict=True)], axis=0)
    return total


def _float_tensor(ne: Shape, elements: Shape) -> Tensor:
    nb = (elements[0] * 4, elements[1] * 4, elements[2] * 4, elements[3] * 4)
    return Tensor(GGMLType.F32, ne, nb)


@given(SHAPES, STRIDES)
def test_nbytes_reaches_to_the_last_byte_of_the_last_element(ne: Shape, strides: Shape) -> None:
    tensor = _float_tensor(ne, strides)
    assert tensor.nbytes == _addresses(ne, tensor.nb).max() + 4
    assert tensor.n_elements == np.prod(ne)
    assert tensor.n_rows == np.prod(ne[1:])


@given(SHAPES, st.permutations(range(4)), st.booleans())
def test_is_contiguous_is_what_numpy_calls_contiguous(
    ne: Shape, order: list[int], padded: bool
) -> None:
    base = np.zeros([n + padded for n in ne[::-1]], np.float32)
    array = base[tuple(slice(n) for n in ne[::-1])].transpose(order)
    shape, nb = array.shape[::-1], array.strides[::-1]
    tensor = Tensor(GGMLType.F32, make_shape(shape), (nb[0], nb[1], nb[2], nb[3]))
    # ggml looks at the first stride even where the row has one element of another stride.
    if tensor.ne[0] == 1:
        tensor.nb = (4, *tensor.nb[1:])
    assert tensor.is_contiguous == array.flags.c_contiguous


@given(SHAPES, st.integers(4, 9), st.integers(0, 1))
def test_is_contiguous_above_one_allows_gaps_after_rows_only(
    ne: Shape, row: int, extra: int
) -> None:
    tensor = _float_tensor(ne, (1, row, row * ne[1] + extra, row * ne[1] * ne[2]))
    rows = np.arange(tensor.n_rows).reshape(ne[1:], order="F") * row * 4
    even = _addresses(ne, tensor.nb)[0] == rows
    if tensor.is_contiguous_above(1):
        assert even.all()
    elif ne[2] > 1 and extra:
        assert not even.all()


def test_a_quantised_row_is_whole_blocks() -> None:
    tensor = new_tensor(GGMLType.Q4_K, [512, 3])
    assert tensor.nb == (144, 288, 864, 864)
    assert tensor.nbytes == 864
    assert tensor.is_contiguous
    with pytest.raises(GraphError, match="multiple of 256"):
        new_tensor(GGMLType.Q4_K, [300])


def test_an_empty_tensor_has_no_bytes() -> None:
    assert new_tensor(GGMLType.F32, [64, 0]).nbytes == 0


@pytest.mark.parametrize("ne", [[1, 2, 3, 4, 5], [-1]])
def test_a_shape_has_up_to_four_dimensions_none_negative(ne: list[int]) -> None:
    with pytest.raises(GraphError):
        make_shape(ne)


def test_a_description_does_not_spell_out_the_graph_behind_a_tensor() -> None:
    tensor = new_tensor(GGMLType.F32, [4], "x")
    for _ in range(2000):
        tensor = Tensor(tensor.type, tensor.ne, tensor.nb, Op.ADD, src=(tensor, tensor))
    assert len(repr(tensor)) < 1000


def test_a_missing_source_is_named() -> None:
    tensor = new_tensor(GGMLType.F32, [4], "x")
    assert tensor.optional(0) is None
    with pytest.raises(GraphError, match="'x': source 0 is missing"):
        tensor.require(0)


# The package gives Q8_1 the size that it had before its scales became F16, and has no Q2_0 yet.
COMPARABLE = sorted(set(GGMLType) - {GGMLType.Q8_1, GGMLType.Q2_0})


@pytest.mark.parametrize("type_", COMPARABLE)
def test_sizes_of_types_are_those_of_the_gguf_package(type_: GGMLType) -> None:
    theirs = GGMLQuantizationType(type_)
    traits = TRAITS[type_]
    assert theirs.name == traits.name.upper() == type_.name
    assert GGML_QUANT_SIZES[theirs] == (traits.block_size, traits.type_size)
    assert type_from_name(traits.name.upper()) is type_


def test_every_type_of_the_gguf_package_is_known() -> None:
    assert {int(t) for t in GGMLQuantizationType} <= {int(t) for t in GGMLType}


def test_rows_and_strides_agree() -> None:
    assert row_size(GGMLType.Q8_0, 64) == 68
    assert contiguous_strides(GGMLType.F16, (3, 4, 5, 6)) == (2, 6, 24, 120)


def test_parameters_come_back_as_they_were_packed() -> None:
    rope = RopeParams(64, 2, 4096, 1e6, 0.5, 0.25, 1.5, 32.0, 2.0, 8)
    assert RopeParams.unpack(rope.pack()) == rope
    attention = AttentionParams(0.125, 8.0, 50.0)
    assert AttentionParams.unpack(attention.pack()) == attention
    assert len(Params.pack("2i", 1, -2).raw) == 64
    assert Params.pack("2i", 1, -2).unpack("2i") == (1, -2)
