"""The verifier: passes what we build and what stock clients send, names what is wrong with the
rest.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from app.errors import GraphError, UnsupportedError
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.op_params import AttentionParams, Params, RopeParams
from app.ggml.ops import FORBIDDEN_OPS, GluOp, Op, UnaryOp
from app.ggml.planner import assign, plan_memory
from app.ggml.shapes import INFER
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.ggml.verify import verify_graph
from tests.helpers.stock_graphs import NAMES, SizedBuffer, stock_graph
from tests.helpers.work import lines_run
from tests.kernels.cases import CASES

F32, F16, I32, I64 = GGMLType.F32, GGMLType.F16, GGMLType.I32, GGMLType.I64
ROPE = RopeParams(16, 2, 4096, 1e4, 1.0, 0.0, 1.0, 32.0, 1.0)


def leaf(type_: GGMLType, ne: list[int], name: str) -> Tensor:
    """A tensor with a buffer of its own that is exactly as large as it is."""
    tensor = new_tensor(type_, ne, name)
    tensor.buffer = SizedBuffer(tensor.nbytes)
    return tensor


def every_operation() -> Graph:
    """A legal graph with memory that has each known operation under the operation's own name."""
    b = GraphBuilder()
    x = leaf(F32, [16, 4, 3], "x")
    cache = leaf(F16, [64, 32], "cache")
    rows, cells = leaf(I32, [3], "rows"), leaf(I64, [3], "cells")
    mask = leaf(F16, [32, 4], "mask")
    b.add(x, leaf(F32, [16], "bias"))
    for op in (Op.SUB, Op.MUL, Op.DIV):
        b.node(op, x, x)
    b.node(Op.ADD1, x, leaf(F32, [1], "one"))
    for op in (Op.SQR, Op.SQRT, Op.LOG, Op.SIN, Op.COS, Op.SUM, Op.SUM_ROWS, Op.MEAN, Op.DUP):
        b.node(op, x)
    b.node(Op.ARGMAX, leaf(F32, [9, 2], "scores"))
    for op in (Op.ARGSORT, Op.DIAG_MASK_INF):
        b.node(op, x, params=Params.pack("i", 1))
    experts = leaf(I32, [4, 3], "experts")
    b.node(Op.MUL_MAT_ID, leaf(F32, [16, 5, 8], "w_exp"), x, experts)
    b.node(Op.ADD_ID, x, leaf(F32, [16, 8], "b_exp"), experts)
    for op in (Op.NORM, Op.L2_NORM):
        b.node(op, x, params=Params.pack("f", 1e-6))
    b.node(Op.LEAKY_RELU, x, params=Params.pack("f", 0.1))
    b.node(Op.CLAMP, x, params=Params.pack("2f", -1.0, math.inf))
    b.node(Op.CONCAT, x, x, params=Params.pack("i", 1))
    b.rms_norm(x, 0.0)
    b.scale(x, 2.0)
    b.unary(x, UnaryOp.SILU)
    b.glu_split(x, x, GluOp.SWIGLU)
    b.mul_mat(leaf(GGMLType.Q8_0, [32, 5], "w"), leaf(F32, [32, 2], "y"))
    b.get_rows(leaf(GGMLType.Q4_K, [256, 9], "embd"), rows)
    b.set_rows(cache, b.reshape(x, 64, 3), cells)
    b.rope(x, rows, None, ROPE)
    keys = b.permute(b.view(cache, [16, 4, 32], [32, 128]), 0, 2, 1, 3)
    query = b.permute(x, 0, 2, 1, 3)
    b.soft_max(leaf(F32, [32, 3, 4], "kq"), mask, 0.25)
    b.flash_attn(query, keys, keys, mask, AttentionParams(0.25))
    b.cont(b.transpose(x))
    b.cast(x, F16)
    nodes = b.finish().nodes
    target = leaf(F16, [16, 12], "target")
    nodes.insert(0, in_place(Op.CPY, (leaf(F32, [12, 16], "from"), target), target))
    nodes.append(Tensor(F32, (32, 4, 3, 1), (4, 128, 512, 1536), Op.REPEAT, src=(x,)))
    for node in nodes:
        node.name = node.op.name
    graph = Graph(nodes)
    plan = plan_memory(graph, alignment=32)
    assign(plan, graph, SizedBuffer(plan.size))
    return graph


def in_place(
    op: Op, sources: tuple[Tensor, ...], target: Tensor, params: Params | None = None
) -> Tensor:
    """A node that writes into the place of `target`."""
    node = replace(target, op=op, params=params or Params(), src=sources, view_src=target)
    node.name = op.name
    return node


def find(graph: Graph, op: Op) -> Tensor:
    """The first node of an operation."""
    return next(node for node in graph.nodes if node.op == op)


def test_every_operation_passes() -> None:
    graph = every_operation()
    verify_graph(graph)
    # tests/kernels run their cases, which the verifier sees first.
    known = {node.op for node in graph.nodes} | {case.op for case in CASES}
    assert known >= INFER.keys() | {Op.CPY, Op.CONT, Op.REPEAT}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("marked_only", [False, True])
def test_what_a_stock_client_sends_passes(name: str, marked_only: bool) -> None:
    verify_graph(stock_graph(name, marked_only=marked_only))


def test_operations_in_place_pass() -> None:
    x, positions = leaf(F32, [16, 4, 3], "x"), leaf(I32, [3], "pos")
    nodes = [
        in_place(Op.ADD, (x, x), x),
        in_place(Op.RMS_NORM, (x,), x, Params.pack("f", 1e-6)),
        in_place(Op.SCALE, (x,), x, Params.pack("2f", 1, 0)),
        in_place(Op.ROPE, (x, positions), x, ROPE.pack()),
        in_place(Op.SOFT_MAX, (x,), x, Params.pack("2f", 1, 0)),
    ]
    verify_graph(Graph(nodes))


def test_a_mask_may_be_made_by_shifting_to_minus_infinity() -> None:
    graph = every_operation()
    find(graph, Op.SCALE).params = Params.pack("2f", 1, -math.inf)
    verify_graph(graph)


def test_a_result_may_reuse_the_memory_of_a_source() -> None:
    """A stock client's allocator does that without saying so in `view_src`."""
    x = leaf(F32, [16, 4], "x")
    node = Tensor(F32, x.ne, x.nb, Op.ADD, src=(x, x), buffer=x.buffer)
    verify_graph(Graph([node]))


def test_a_step_without_outputs_passes() -> None:
    b = GraphBuilder()
    x = leaf(F32, [16, 3], "x")
    picked = b.get_rows(x, leaf(I32, [0], "none"))
    graph = b.finish(b.mul_mat(leaf(F32, [16, 8], "w"), b.add(picked, b.scale(picked, 2.0))))
    plan = plan_memory(graph, alignment=32)
    assign(plan, graph, SizedBuffer(plan.size))
    verify_graph(graph)


def test_what_an_earlier_graph_computed_is_data_now() -> None:
    old = leaf(F32, [4], "old")
    old.op, old.src = Op.CUSTOM, (new_tensor(F32, [4], "freed long ago"),)
    node = leaf(F32, [4], "new")
    node.op, node.src = Op.SQR, (old,)
    verify_graph(Graph([node]))


Change = Callable[[Tensor], None]


def _set(**values: object) -> Change:
    def change(node: Tensor) -> None:
        for name, value in values.items():
            setattr(node, name, value)

    return change


def _source(index: int, **values: object) -> Change:
    def change(node: Tensor) -> None:
        _set(**values)(node.require(index))

    return change


def _drop_source(index: int) -> Change:
    def change(node: Tensor) -> None:
        node.src = (*node.src[:index], None, *node.src[index + 1 :])

    return change


def _elsewhere(offset: int) -> Change:
    """Move a node within the same, larger buffer."""

    def change(node: Tensor) -> None:
        assert isinstance(node.buffer, SizedBuffer)
        object.__setattr__(node.buffer, "size", node.buffer.size + offset)
        node.offset = offset

    return change


def _gaps_in_source(node: Tensor) -> None:
    root = leaf(F32, [32, 12], "root")
    gaps = replace(root, ne=(16, 12, 1, 1), name="gaps")
    node.src, node.view_src, node.buffer = (gaps,), gaps, gaps.buffer


def _rope(**values: float) -> Params:
    return replace(ROPE, **values).pack()  # type: ignore[arg-type]


WRONG: list[tuple[str, Op, Change, str]] = [
    ("negative offset", Op.ADD, _set(offset=-4), "at byte -4, expected a multiple of 4"),
    ("odd offset", Op.ADD, _set(offset=2), "at byte 2, expected a multiple of 4"),
    ("odd offset of blocks", Op.MUL_MAT, _source(0, offset=1), "expected a multiple of 2"),
    ("past the buffer", Op.ADD, _set(offset=1 << 40), "expected it inside"),
    ("source past the buffer", Op.MUL_MAT, _source(0, offset=34), "'w' q8_0.*expected it inside"),
    ("one row too many", Op.GET_ROWS, _source(0, ne=(256, 10, 1, 1)), "ends at byte 1440 of a buf"),
    ("no buffer", Op.ADD, _set(buffer=None), "'ADD' has no buffer"),
    ("source without buffer", Op.ADD, _source(1, buffer=None), "'bias' has no buffer"),
    ("view source without buffer", Op.FLASH_ATTN_EXT, _source(1, buffer=None), "has no buffer"),
    ("negative dimension", Op.ADD, _source(1, ne=(-16, 1, 1, 1)), "no negative dimension"),
    ("2^64 elements", Op.ADD, _source(1, ne=(1 << 16,) * 4), "less than 2\\^63 elements"),
    ("negative stride", Op.ADD, _source(1, nb=(4, -64, 64, 64)), "strides that are multiples of 4"),
    ("half a stride", Op.ADD, _source(0, nb=(4, 62, 256, 768)), "strides that are multiples of 4"),
    ("stride of 2^32", Op.ADD, _source(0, nb=(4, 1 << 32, 256, 768)), "expected it inside"),
    ("half a block", Op.MUL_MAT, _source(0, ne=(31, 5, 1, 1)), "whole blocks of 32, 34 bytes"),
    ("apart blocks", Op.MUL_MAT, _source(0, nb=(68, 34, 170, 170)), "whole blocks of 32"),
    ("wrong type", Op.ADD, _set(type=GGMLType.I32), r"expected f32\[16, 4, 3, 1\]"),
    ("wrong shape", Op.ADD, _set(ne=(16, 3, 4, 1)), r"expected f32\[16, 4, 3, 1\]"),
    ("result with gaps", Op.ADD, _set(nb=(4, 128, 512, 1536)), "expected a result without gaps"),
    ("missing source", Op.ADD, _drop_source(1), "ADD: source 1 is missing"),
    ("missing source of a copy", Op.CPY, _drop_source(1), "source 1 is missing"),
    ("missing source of a view", Op.VIEW, _drop_source(0), "source 0 is missing"),
    ("column vectors", Op.MUL_MAT, _source(1, nb=(8, 4, 256, 256)), "source 1 'y'.*rows without"),
    ("gaps in a mask", Op.SOFT_MAX, _source(1, nb=(2, 32, 256, 256)), "source 1 'mask'.*no gaps"),
    ("eps below zero", Op.RMS_NORM, _set(params=Params.pack("f", -1)), "eps is -1.0, expected a f"),
    ("eps not finite", Op.NORM, _set(params=Params.pack("f", math.inf)), "eps is inf"),
    ("eps not a number", Op.L2_NORM, _set(params=Params.pack("f", math.nan)), "eps is nan"),
    ("scale", Op.SCALE, _set(params=Params.pack("2f", math.inf, 0)), "scale is inf"),
    ("bias", Op.SCALE, _set(params=Params.pack("2f", 1, math.nan)), "bias is nan"),
    ("slope", Op.LEAKY_RELU, _set(params=Params.pack("f", math.nan)), "slope is nan"),
    ("limits", Op.CLAMP, _set(params=Params.pack("2f", 2, 1)), "limits 2.0 and 1.0"),
    ("limits nan", Op.CLAMP, _set(params=Params.pack("2f", math.nan, 1)), "limits nan"),
    ("swap flag", Op.GLU, _set(params=Params.pack("2i", 2, 7)), "swap flag is 7"),
    ("alpha", Op.GLU, _set(params=Params.pack("2i2f", 3, 0, math.nan, 1)), "alpha is nan"),
    ("softmax scale", Op.SOFT_MAX, _set(params=Params.pack("2f", math.nan, 0)), "scale is nan"),
    ("softmax bias", Op.SOFT_MAX, _set(params=Params.pack("2f", 1, -1)), "max_bias is -1.0"),
    ("cap", Op.FLASH_ATTN_EXT, _set(params=Params.pack("3f", 1, 0, math.inf)), "logit_softcap is"),
    ("base zero", Op.ROPE, _set(params=_rope(freq_base=0.0)), "freq_base is 0"),
    ("base", Op.ROPE, _set(params=_rope(freq_base=-1.0)), "freq_base is -1"),
    ("frequency scale", Op.ROPE, _set(params=_rope(freq_scale=math.nan)), "freq_scale is nan"),
    ("factor", Op.ROPE, _set(params=_rope(attn_factor=math.inf)), "attn_factor is inf"),
    ("beta", Op.ROPE, _set(params=_rope(beta_fast=math.nan)), "beta_fast is nan"),
    ("dims", Op.ROPE, _set(params=_rope(n_dims=18)), "even n_dims 18 within the row"),
    ("cont of fewer", Op.CONT, _set(ne=(4, 16, 2, 1)), "as many f32 elements"),
    ("cont of a type", Op.CONT, _set(type=F16, nb=(2, 8, 128, 384)), "as many f32 elements"),
    ("copy of fewer", Op.CPY, _source(0, ne=(12, 15, 1, 1)), "as many elements as"),
    ("repeat", Op.REPEAT, _set(ne=(33, 4, 3, 1)), "repetitions of"),
    ("rows elsewhere", Op.SET_ROWS, _elsewhere(2), "the result lies at byte 2 .*source 2"),
    ("rows of no view", Op.SET_ROWS, _set(buffer=SizedBuffer(4096)), "the result lies at byte 0"),
    ("a product in place", Op.MUL_MAT, _set(view_src=new_tensor(F32, [5, 2])), "memory of its own"),
    ("view of nothing", Op.VIEW, _set(view_src=None), "no view source"),
    ("view before", Op.VIEW, _set(view_offs=-64), "bytes -64 to .*expected them inside"),
    ("view too long", Op.VIEW, _set(view_offs=2), "expected them inside its 4096"),
    ("view elsewhere", Op.VIEW, _elsewhere(2), "the view lies at byte 2, expected 0"),
    ("view of another type", Op.VIEW, _set(type=GGMLType.I16), "the source's type f16"),
    ("view in another buffer", Op.VIEW, _set(buffer=SizedBuffer(4096)), "in the buffer of 'cache'"),
    ("reshape of fewer", Op.RESHAPE, _set(ne=(63, 3, 1, 1)), "gapless shape of as many"),
    ("reshape of gaps", Op.RESHAPE, _gaps_in_source, "'gaps'.*no gaps"),
    ("axes", Op.PERMUTE, _set(params=Params.pack("4i", 0, 0, 1, 2)), "axes \\[0, 0, 1, 2\\]"),
    ("other axes", Op.PERMUTE, _set(params=Params.pack("4i", 0, 1, 2, 3)), "in the order of axes"),
    ("transpose", Op.TRANSPOSE, _set(nb=(4, 16, 256, 768)), "with the first two swapped"),
    ("sort order", Op.ARGSORT, _set(params=Params.pack("i", 2)), "sort order 2"),
    ("past", Op.DIAG_MASK_INF, _set(params=Params.pack("i", -1)), "n_past is -1"),
]


@pytest.mark.parametrize(
    ("op", "change", "reason"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_a_wrong_node_is_refused_by_number_and_name(op: Op, change: Change, reason: str) -> None:
    graph = every_operation()
    node = find(graph, op)
    change(node)
    with pytest.raises(GraphError, match=reason) as caught:
        verify_graph(graph)
    assert "expected" in str(caught.value) or "missing" in str(caught.value)
    assert str(caught.value).startswith("node ")


def test_the_error_names_the_node_that_is_wrong() -> None:
    graph = every_operation()
    node = find(graph, Op.RMS_NORM)
    node.params = Params.pack("f", -1.0)
    where = graph.nodes.index(node)
    with pytest.raises(GraphError, match=f"^node {where} RMS_NORM 'RMS_NORM': eps"):
        verify_graph(graph)


UNKNOWN: list[tuple[Op, Change, str]] = [
    (Op.UNARY, _set(params=Params.pack("i", 99)), "function number 99"),
    (Op.UNARY, _set(params=Params.pack("i", -1)), "function number -1"),
    (Op.GLU, _set(params=Params.pack("i", 7)), "function number 7"),
    (Op.ROPE, _set(params=_rope(mode=3)), r"rotation mode 3, expected 0 \(norm\), 2 \(neox\)"),
    (Op.SQR, _set(op=Op.FLASH_ATTN_BACK), "FLASH_ATTN_BACK .*not known here"),
]


@pytest.mark.parametrize(("op", "change", "reason"), UNKNOWN)
def test_what_is_not_known_here_is_unsupported(op: Op, change: Change, reason: str) -> None:
    graph = every_operation()
    change(find(graph, op))
    with pytest.raises(UnsupportedError, match=reason):
        verify_graph(graph)


@pytest.mark.parametrize("op", sorted(FORBIDDEN_OPS))
def test_function_pointers_are_refused(op: Op) -> None:
    graph = every_operation()
    find(graph, Op.SQR).op = op
    with pytest.raises(GraphError, match=f"{op.name} .*function pointer"):
        verify_graph(graph)


def test_a_bias_by_position_needs_a_mask() -> None:
    for op, index in ((Op.SOFT_MAX, 1), (Op.FLASH_ATTN_EXT, 3)):
        graph = every_operation()
        node = find(graph, op)
        node.params = AttentionParams(1.0, 8.0).pack()
        verify_graph(graph)
        _drop_source(index)(node)
        with pytest.raises(GraphError, match=r"max_bias is 8\.0 without a mask"):
            verify_graph(graph)


def test_order_is_checked() -> None:
    graph = every_operation()
    graph.nodes.reverse()
    with pytest.raises(GraphError, match="comes later"):
        verify_graph(graph)


def test_a_node_may_not_read_itself_nor_stand_twice() -> None:
    x = leaf(F32, [4], "x")
    x.op, x.src = Op.ADD, (x, x)
    with pytest.raises(GraphError, match="source 0 'x' comes later"):
        verify_graph(Graph([x]))
    x.src = (leaf(F32, [4], "y"),) * 2
    with pytest.raises(GraphError, match="stands twice"):
        verify_graph(Graph([x, x]))
    x.op, x.view_src = Op.VIEW, x
    with pytest.raises(GraphError, match="view source 'x' comes later"):
        verify_graph(Graph([x]))


def test_only_a_cast_names_itself() -> None:
    x, y = leaf(F32, [4], "x"), leaf(F16, [4], "y")
    y.op, y.src = Op.CPY, (x, y)
    verify_graph(Graph([y]))
    y.src = (y, x)
    with pytest.raises(GraphError, match="comes later"):
        verify_graph(Graph([y]))


def test_a_cycle_is_refused() -> None:
    a, b = leaf(F32, [4], "a"), leaf(F32, [4], "b")
    a.op, a.src, b.op, b.src = Op.SQR, (b,), Op.SQR, (a,)
    with pytest.raises(GraphError, match="source 0 'b' comes later"):
        verify_graph(Graph([a, b]))


def test_a_result_whose_rows_overlap_is_refused() -> None:
    root = leaf(F32, [64], "root")
    b = GraphBuilder()
    rows = b.view(root, [8, 4], [16])
    node = in_place(Op.SCALE, (rows,), rows, Params.pack("2f", 1, 0))
    with pytest.raises(GraphError, match=r"do not share memory"):
        verify_graph(Graph([rows, node]))
    rows.nb = node.nb = (4, 48, 192, 192)
    verify_graph(Graph([rows, node]))


def test_a_long_chain_takes_linear_time() -> None:
    x = leaf(F32, [1], "x")
    nodes = []
    for _ in range(100_000):
        x = Tensor(F32, x.ne, x.nb, Op.SQR, src=(x,), buffer=x.buffer)
        nodes.append(x)
    start = time.process_time()
    verify_graph(Graph(nodes))
    # Measured: 0.6 s. Were each node looked for among all others, it would be minutes.
    assert time.process_time() - start < 20


def test_fifteen_hundred_tensors_take_a_hundred_lines_each() -> None:
    nodes: list[Tensor] = []
    while len(nodes) < 1000:
        nodes += stock_graph("llama-flash-decode").nodes
    graph = Graph(nodes)
    assert len(graph.tensors()) > 1400
    # Measured: 96 lines for each, 8 ms in all.
    assert lines_run(lambda: verify_graph(graph)) < 120 * len(graph.tensors())
