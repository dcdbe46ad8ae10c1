"""rpc_tensor against numpy's own reading of the same bytes, and what a tensor needs to exist."""

import random

import numpy as np
import pytest

from app.errors import GraphError
from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.tensor import Tensor, TensorFlag, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.wire.tensor import (
    NOWHERE,
    NULL_TENSOR,
    TENSOR_BYTES,
    Place,
    WireTensor,
    pack_tensor,
    to_tensor,
    to_wire,
    unpack_tensors,
)
from tests.helpers.rpc_frames import TENSOR


def test_any_bytes_read_as_numpy_reads_them_by_offset() -> None:
    raw = random.Random(1).randbytes(50 * TENSOR_BYTES)
    expected = np.frombuffer(raw, TENSOR)
    for ours, theirs in zip(unpack_tensors(raw), expected, strict=True):
        numbers = ("id", "type", "buffer", "op", "flags", "view_src", "view_offs", "data")
        for name in (*numbers, "use_count"):
            assert getattr(ours, name) == theirs[name], name
        for name in ("ne", "nb", "src"):
            assert getattr(ours, name) == tuple(theirs[name]), name
        assert ours.params == theirs["op_params"].tobytes()
        assert ours.name == theirs.tobytes()[228:292].split(b"\0")[0]


def test_a_tensor_survives_the_wire() -> None:
    params = Params.pack("2i", 3, 4)
    tensor = Tensor(
        GGMLType.Q4_K,
        (512, 7, 3, 2),
        (144, 288, 2016, 6048),
        Op.MUL_MAT,
        params,
        view_offs=64,
        flags=TensorFlag.OUTPUT,
        name="Qcur-3",
    )
    wire = to_wire(tensor, Place(5, 4096), key=9)
    (back,) = unpack_tensors(pack_tensor(wire))
    assert back == wire
    again = to_tensor(back)
    for name in ("type", "ne", "nb", "op", "params", "view_offs", "flags", "name"):
        assert getattr(again, name) == getattr(tensor, name), name


def test_long_names_are_cut_and_odd_ones_do_no_harm() -> None:
    wire = to_wire(new_tensor(GGMLType.F32, (1,), "n" * 100), NOWHERE)
    assert unpack_tensors(pack_tensor(wire))[0].label == "n" * 63
    assert NULL_TENSOR._replace(name=b"\xff\xfe").label == "\ufffd\ufffd"


@pytest.mark.parametrize("ne", [(1, 1 << 30, 1, 2), (1 << 32,)])
def test_what_needs_more_than_32_bits_is_refused_by_name(ne: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match=r"'big'.*4 GiB"):
        to_wire(new_tensor(GGMLType.F32, ne, "big"), NOWHERE)


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (NULL_TENSOR._replace(type=43), "type 43"),
        (NULL_TENSOR._replace(type=4), "type 4"),
        (NULL_TENSOR._replace(type=2**32 - 1), "type 4294967295"),
        (NULL_TENSOR._replace(op=101), "operation 101"),
        (NULL_TENSOR._replace(type=int(GGMLType.Q4_0), ne=(33, 1, 1, 1)), "multiple of 32"),
    ],
)
def test_what_cannot_be_a_tensor_is_refused(bad: WireTensor, what: str) -> None:
    with pytest.raises(GraphError, match=what):
        to_tensor(bad)


def test_unknown_flag_bits_are_dropped() -> None:
    assert to_tensor(NULL_TENSOR._replace(flags=-1)).flags == sum(TensorFlag)
