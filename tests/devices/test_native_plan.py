"""Plans of the native device: kept per graph, right where the memory planner reuses bytes, with
reference kernels in between, and the same results as the reference device.
"""

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from app.devices import plans
from app.devices.base import BufferUsage, Device
from app.devices.native_device import NativeDevice
from app.devices.native_plan import NativeSegment, ReferenceSegment
from app.errors import GraphError, UnsupportedError
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.op_params import AttentionParams, RopeParams
from app.ggml.ops import GluOp, Op
from app.ggml.planner import assign, plan_memory
from app.ggml.tensor import Tensor, TensorFlag
from app.ggml.types import GGMLType
from app.kernels.cpu.layout import Kind
from tests.devices.graphs import cpu, get, place, put
from tests.helpers.native import native_cpu
from tests.kernels.harness import random_blocks

F32, F16, I32, I64 = GGMLType.F32, GGMLType.F16, GGMLType.I32, GGMLType.I64


@pytest.fixture
def device() -> Iterator[NativeDevice]:
    device = native_cpu(2)
    yield device
    device.close()


def _plans(device: NativeDevice) -> int:
    return len(device._executor._plans)


def _segments(device: NativeDevice, graph: Graph) -> list[NativeSegment | ReferenceSegment]:
    return device._executor._plans[graph].segments


def _kinds(device: NativeDevice, graph: Graph) -> list[Kind]:
    segments = _segments(device, graph)
    return [kind for s in segments if isinstance(s, NativeSegment) for kind in s.kinds]


def _square(device: NativeDevice, uid: int | None = None) -> tuple[Graph, Tensor, Tensor]:
    b = GraphBuilder()
    x = b.input(F32, [4], "x")
    y = b.mul(x, x)
    graph = b.finish(y)
    graph.uid = graph.uid if uid is None else uid
    place(device, graph)
    return graph, x, y


def test_a_kept_graph_runs_again_on_new_inputs(device: NativeDevice) -> None:
    graph, x, y = _square(device)
    for value in (2.0, 3.0):
        put(device, x, np.full(4, value))
        device.compute(graph)
        assert get(device, y).tolist() == [value * value] * 4
    assert _plans(device) == 1
    del graph, x, y
    gc.collect()
    assert _plans(device) == 0


def test_a_graph_without_uid_is_not_kept(device: NativeDevice) -> None:
    graph, x, y = _square(device, uid=0)
    put(device, x, np.full(4, 2.0))
    device.compute(graph)
    assert get(device, y).tolist() == [4.0] * 4
    assert _plans(device) == 0


def test_the_plans_of_a_freed_buffer_are_forgotten(device: NativeDevice) -> None:
    graph, x, _ = _square(device)
    device.compute(graph)
    assert x.buffer is not None
    device.free(x.buffer)
    assert _plans(device) == 0


def test_the_number_of_plans_is_bounded(
    device: NativeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "MOST_PLANS", 64)
    graphs = [_square(device) for _ in range(70)]
    for graph, _, _ in graphs:
        device.compute(graph)
    assert _plans(device) == 64


def test_an_unknown_operation_is_refused_before_anything_runs(device: NativeDevice) -> None:
    b = GraphBuilder()
    x = b.input(F32, [4], "x")
    y = b.mul(x, x)
    z = b.mul(y, y)
    graph = b.finish(z)
    place(device, graph)
    put(device, x, np.ones(4))
    z.op = Op.FLASH_ATTN_BACK
    with pytest.raises(UnsupportedError):
        device.compute(graph)
    assert not get(device, y).any()
    reason = device.unsupported(graph.nodes)
    assert reason is not None and "FLASH_ATTN_BACK" in reason


def test_reference_kernels_take_their_turn_on_the_same_memory(device: NativeDevice) -> None:
    b = GraphBuilder()
    x = b.input(F32, [100, 3], "x")
    y = b.scale(b.node(Op.COS, b.scale(x, 2.0)), 3.0, 1.0)
    graph = b.finish(y)
    place(device, graph)
    values = np.random.default_rng(0).standard_normal((3, 100)).astype(np.float32)
    for shift in (0.0, 1.0):
        put(device, x, values + shift)
        device.compute(graph)
        np.testing.assert_allclose(get(device, y), 3 * np.cos(2 * (values + shift)) + 1, atol=1e-5)
    kinds = [type(segment) for segment in _segments(device, graph)]
    assert kinds == [NativeSegment, ReferenceSegment, NativeSegment]


def test_bad_indices_are_named(device: NativeDevice) -> None:
    b = GraphBuilder()
    table, indices = b.input(F32, [8, 5], "table"), b.input(I32, [3], "indices")
    rows = b.get_rows(table, indices)
    rows.name = "rows"
    graph = b.finish(rows)
    place(device, graph)
    for bad in (-1, 5, 2**31 - 1):
        device.set_tensor(indices, np.array([0, bad, 1], np.int32).tobytes())
        low, high = min(0, bad), max(1, bad)
        with pytest.raises(
            GraphError, match=rf"GET_ROWS 'rows': indices {low}…{high}: expected 0…4"
        ):
            device.compute(graph)
    device.set_tensor(indices, np.array([0, 4, 1], np.int32).tobytes())
    device.compute(graph)


@pytest.mark.parametrize("op", [Op.MUL_MAT_ID, Op.ADD_ID])
def test_bad_indices_of_experts_are_named(device: NativeDevice, op: Op) -> None:
    b = GraphBuilder()
    experts = b.input(GGMLType.Q8_0, [32, 16, 5], "experts")
    sources = {
        Op.MUL_MAT_ID: (experts, b.input(F32, [32, 1, 2], "rows")),
        Op.ADD_ID: (b.input(F32, [16, 3, 2], "a"), b.input(F32, [16, 5], "biases")),
    }
    indices = b.input(I32, [3, 2], "indices")
    chosen = b.node(op, *sources[op], indices)
    chosen.name = "chosen"
    graph = b.finish(chosen)
    place(device, graph)
    for bad in (-1, 5, 2**31 - 1):
        device.set_tensor(indices, np.array([0, 1, 0, bad, 1, 2], np.int32).tobytes())
        low, high = min(0, bad), max(2, bad)
        wanted = rf"{op.name} 'chosen': indices {low}…{high}: expected 0…4"
        with pytest.raises(GraphError, match=wanted):
            device.compute(graph)
    device.set_tensor(indices, np.array([0, 1, 0, 4, 1, 2], np.int32).tobytes())
    device.compute(graph)
    assert _kinds(device, graph)[-1] == Kind[op.name]


def test_norm_and_weight_are_one_step_unless_somebody_looks_between(device: NativeDevice) -> None:
    for looks in (False, True):
        b = GraphBuilder()
        x, weight = b.input(F32, [64, 3], "x"), b.input(F32, [64], "weight")
        normed = b.rms_norm(x, 1e-5)
        if looks:
            normed.flags |= TensorFlag.OUTPUT
        y = b.mul(normed, weight)
        graph = b.finish(y)
        place(device, graph)
        rng = np.random.default_rng(0)
        values, factors = rng.standard_normal((3, 64)), rng.standard_normal(64)
        put(device, x, values)
        put(device, weight, factors)
        device.compute(graph)
        length = np.sqrt((values**2).mean(-1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(get(device, y), values / length * factors, rtol=1e-4)
        expected = [Kind.RMS_NORM, Kind.BINARY] if looks else [Kind.RMS_NORM]
        assert _kinds(device, graph) == expected
        if looks:
            np.testing.assert_allclose(get(device, normed), values / length, rtol=1e-4)


def test_activations_are_quantised_once_for_all_weights_that_read_them(
    device: NativeDevice,
) -> None:
    b = GraphBuilder()
    weights = [b.input(GGMLType.Q8_0, [64, 32], f"w{i}") for i in range(3)]
    x = b.input(F32, [64, 1], "x")
    first, second = b.mul_mat(weights[0], x), b.mul_mat(weights[1], x)
    doubled = b.scale(x, 2.0)
    third = b.mul_mat(weights[2], doubled)
    graph = b.finish(b.add(b.add(first, second), third))
    place(device, graph)
    device.compute(graph)
    assert _kinds(device, graph).count(Kind.QUANTIZE) == 2
    assert _kinds(device, graph).count(Kind.MATVEC) == 3


def test_activations_are_quantised_again_after_they_were_overwritten(device: NativeDevice) -> None:
    b = GraphBuilder()
    weight, x = b.input(GGMLType.Q8_0, [64, 32], "weight"), b.input(F32, [64, 1], "x")
    first = b.mul_mat(weight, x)
    doubled = b.scale(x, 2.0)
    second = b.mul_mat(weight, doubled)
    graph = b.finish(first, second)
    place(device, graph)
    doubled.view_src, doubled.buffer, doubled.offset = x, x.buffer, x.offset
    device.set_tensor(weight, random_blocks(np.random.default_rng(0), GGMLType.Q8_0, 64))
    put(device, x, np.linspace(-1, 1, 64))
    device.compute(graph)
    np.testing.assert_allclose(get(device, second), 2 * get(device, first), rtol=1e-5)


def test_the_profile_names_every_kind_of_step(device: NativeDevice) -> None:
    graph, _, _ = _square(device)
    device.compute(graph)
    assert device.profile() == []
    device.start_profile()
    for _ in range(3):
        device.compute(graph)
    (row,) = device.profile()
    assert (row.kind, row.count) == ("BINARY", 3)
    assert row.seconds > 0


class _Layer:
    """A transformer layer of grouped heads whose memory is planned, so that bytes are reused.

    The attention scale keeps softmax soft: a sharp one would magnify what quantising costs.
    """

    def __init__(self, n_tokens: int) -> None:
        b = GraphBuilder()
        self.n = n_tokens
        self.x = b.input(F32, [96, n_tokens], "x")
        self.positions = b.input(I32, [n_tokens], "positions")
        self.cells = b.input(I64, [n_tokens], "cells")
        self.mask = b.input(F16, [64, n_tokens], "mask")
        self.leaves = {
            name: b.input(type_, ne, name)
            for name, type_, ne in (
                ("norm", F32, [96]),
                ("q", GGMLType.Q4_1, [96, 128]),
                ("k", GGMLType.Q8_0, [96, 64]),
                ("v", GGMLType.Q5_0, [96, 64]),
                ("o", GGMLType.Q4_0, [128, 96]),
                ("up", GGMLType.Q8_0, [96, 160]),
                ("gate", GGMLType.Q4_1, [96, 160]),
                ("down", GGMLType.Q4_1, [160, 96]),
                ("k_cache", F16, [64, 64]),
                ("v_cache", F16, [64, 64]),
            )
        }
        y = self.x
        for _ in range(2):
            y = b.add(y, self._attention(b, self._norm(b, y)))
            y = b.add(y, self._feed_forward(b, self._norm(b, y)))
        self.y = y
        self.graph = b.finish(y)

    def _norm(self, b: GraphBuilder, x: Tensor) -> Tensor:
        return b.mul(b.rms_norm(x, 1e-5), self.leaves["norm"])

    def _attention(self, b: GraphBuilder, x: Tensor) -> Tensor:
        w, n = self.leaves, self.n
        rope = RopeParams(32, 2, 2048, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0)
        q = b.rope(b.reshape(b.mul_mat(w["q"], x), 32, 4, n), self.positions, None, rope)
        k = b.rope(b.reshape(b.mul_mat(w["k"], x), 32, 2, n), self.positions, None, rope)
        b.set_rows(w["k_cache"], b.reshape(k, 64, n), self.cells)
        b.set_rows(w["v_cache"], b.mul_mat(w["v"], x), self.cells)
        keys, values = (
            b.permute(b.view(w[name], [32, 2, 64], [64, 128]), 0, 2, 1, 3)
            for name in ("k_cache", "v_cache")
        )
        query = b.permute(q, 0, 2, 1, 3)
        mixed = b.flash_attn(query, keys, values, self.mask, AttentionParams(0.002))
        return b.mul_mat(w["o"], b.reshape(mixed, 128, n))

    def _feed_forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        w = self.leaves
        gated = b.glu_split(b.mul_mat(w["gate"], x), b.mul_mat(w["up"], x), GluOp.SWIGLU)
        return b.mul_mat(w["down"], gated)

    def run(self, device: Device) -> np.ndarray:
        """Place, fill and run it twice; the second run has used caches."""
        for leaf in self.leaves.values():
            leaf.buffer, leaf.offset = device.alloc(leaf.nbytes, BufferUsage.WEIGHTS), 0
        plan = plan_memory(self.graph, alignment=device.alignment())
        assign(plan, self.graph, device.alloc(plan.size, BufferUsage.COMPUTE))
        rng = np.random.default_rng(5)
        for leaf in self.leaves.values():
            count = leaf.n_elements // 32
            if leaf.type in (F32, F16):
                dtype = np.float32 if leaf.type == F32 else np.float16
                values = rng.standard_normal(leaf.n_elements).astype(dtype)
                device.set_tensor(leaf, values.tobytes())
            else:
                device.set_tensor(leaf, random_blocks(rng, leaf.type, count))
        put(device, self.x, rng.standard_normal((self.n, 96)))
        device.set_tensor(self.positions, np.arange(self.n, dtype=np.int32).tobytes())
        device.set_tensor(self.cells, np.arange(self.n, dtype=np.int64).tobytes())
        seen = np.arange(64)[None, :] <= np.arange(self.n)[:, None]
        device.set_tensor(self.mask, np.where(seen, 0, -np.inf).astype(np.float16).tobytes())
        for _ in range(2):
            device.compute(self.graph)
        return get(device, self.y)


@pytest.mark.parametrize("n_tokens", [1, 3, 8, 9, 40])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_planned_layer_equals_the_reference(n_tokens: int, threads: int) -> None:
    device, reference = native_cpu(threads), cpu()
    got, want = _Layer(n_tokens).run(device), _Layer(n_tokens).run(reference)
    # Fourteen products in a row with int8 or bf16 activations; a wrong byte gives about 1.
    assert np.sum((got - want) ** 2) / np.sum(want**2) < 1e-2
    assert np.isfinite(got).all()
    device.close()
    reference.close()
