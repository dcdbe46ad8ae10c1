"""`--list-ops` and what a worker says of a graph that it cannot run."""

import json

import pytest

from app.devices.base import BufferUsage, Device
from app.devices.op_list import list_ops
from app.errors import GraphError, LlamaServeError, UnsupportedError
from app.ggml.graph import Graph, next_uid
from app.ggml.op_params import Params
from app.ggml.ops import FORBIDDEN_OPS, VIEW_OPS, GluOp, Op, UnaryOp
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.ggml.verify import KNOWN_OPS
from app.kernels.torch_ref.ops import reference_table
from tests.devices.graphs import cpu
from tests.helpers.assets import shared_dir
from tests.helpers.native import native_cpu

F32 = GGMLType.F32
NUMBERS = shared_dir() / "wire" / "ggml_numbers.json"


def _lines(device: Device) -> dict[str, dict[str, list[str]]]:
    """Return the details of each operation that a device lists."""
    found = {}
    for line in list_ops(device):
        name, op, details = line.split("\t")
        assert name == device.info.name
        fields = [field.split("=") for field in details.split(";") if field]
        found[op] = {key: values.split(",") for key, values in fields}
    return found


def test_the_kernels_are_those_of_the_operations_that_the_verifier_knows() -> None:
    assert reference_table().ops == KNOWN_OPS


def test_numbers_of_operations_are_those_of_ggml() -> None:
    if not NUMBERS.exists():
        pytest.skip(f"{NUMBERS} is absent")
    assert json.loads(NUMBERS.read_text("utf-8"))["ops"] == [op.name for op in Op]


def test_a_line_per_operation_with_the_functions_and_types_that_it_takes() -> None:
    device = cpu()
    listed = _lines(device)
    assert listed.keys() == {op.name for op in KNOWN_OPS | VIEW_OPS}
    assert listed["UNARY"]["functions"] == [f.name for f in UnaryOp]
    assert listed["GLU"]["functions"] == [f.name for f in GluOp]
    assert listed["ADD"]["types"] == ["f32", "f16", "bf16"]
    assert {"q4_K", "mxfp4", "iq1_m", "bf16"} <= set(listed["MUL_MAT"]["weights"])
    assert "iq2_s" in listed["GET_ROWS"]["rows"] and "iq2_s" not in listed["SET_ROWS"]["into"]
    for name in ("CONV_2D", "CONV_2D_DW", "CONV_3D", "CONV_TRANSPOSE_1D", "CONV_TRANSPOSE_2D"):
        assert listed[name] == {"kernels": ["f32", "f16"]}, name
    assert listed["POOL_1D"] == listed["POOL_2D"] == {"types": ["f32", "f16"]}
    assert "q8_0" in listed["LIGHTNING_INDEXER"]["keys"]
    device.close()


def test_the_native_core_lists_what_it_and_the_reference_kernels_run() -> None:
    native, reference = native_cpu(), cpu()
    assert _lines(native) == _lines(reference)
    native.close()
    reference.close()


def _graph(device: Device, op: Op) -> Graph:
    """Make a graph whose second node is of any operation, the first one fills a tensor."""
    first, second = new_tensor(F32, (8, 4)), new_tensor(F32, (8, 4))
    buffer = device.alloc(1024, BufferUsage.ANY)
    first.buffer, second.buffer, second.offset = buffer, buffer, 512
    source = Tensor(F32, first.ne, first.nb, name="x", buffer=buffer, offset=256)
    first.op, first.src, first.params = Op.FILL, (source,), Params.pack("f", 7.0)
    second.op, second.src = op, (first,)
    return Graph([first, second], next_uid())


@pytest.mark.parametrize("op", sorted(set(Op) - KNOWN_OPS - VIEW_OPS), ids=lambda op: op.name)
def test_what_is_not_listed_is_refused_by_name_before_any_kernel_runs(op: Op) -> None:
    device = native_cpu()
    graph = _graph(device, op)
    with pytest.raises(LlamaServeError, match=f"node 1 {op.name} ") as refusal:
        device.compute(graph)
    assert isinstance(refusal.value, GraphError if op in FORBIDDEN_OPS else UnsupportedError)
    assert len(str(refusal.value)) < 120
    filled = graph.nodes[0]
    assert device.get_tensor(filled, 0, filled.nbytes).result() == bytes(filled.nbytes)
    device.close()
