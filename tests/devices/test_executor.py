"""Plans: kept per graph, right after each change of what they read, forgotten with a buffer."""

import gc
from collections.abc import Iterator

import gguf
import numpy as np
import pytest

from app.devices import plans
from app.devices.base import BufferUsage
from app.devices.torch_device import TorchDevice
from app.errors import GraphError, UnsupportedError
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.op_params import AttentionParams, Params, RopeParams
from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from tests.devices.graphs import cpu, get, place, put

F32, F16, I32 = GGMLType.F32, GGMLType.F16, GGMLType.I32


@pytest.fixture
def device() -> Iterator[TorchDevice]:
    device = cpu()
    yield device
    device.close()


def _plans(device: TorchDevice) -> int:
    return len(device._executor._plans)


def _square(device: TorchDevice, uid: int | None = None) -> tuple[Graph, Tensor, Tensor]:
    b = GraphBuilder()
    x = b.input(F32, [4], "x")
    y = b.mul(x, x)
    graph = b.finish(y)
    graph.uid = graph.uid if uid is None else uid
    place(device, graph)
    return graph, x, y


def test_a_kept_graph_runs_again_on_new_inputs(device: TorchDevice) -> None:
    graph, x, y = _square(device)
    for value in (2.0, 3.0):
        put(device, x, np.full(4, value))
        device.compute(graph)
        assert get(device, y).tolist() == [value * value] * 4
    assert _plans(device) == 1


def test_a_graph_without_uid_is_not_kept(device: TorchDevice) -> None:
    graph, x, y = _square(device, uid=0)
    put(device, x, np.full(4, 2.0))
    device.compute(graph)
    assert get(device, y).tolist() == [4.0] * 4
    assert _plans(device) == 0


def test_a_dropped_graph_takes_its_plan_along(device: TorchDevice) -> None:
    graph, *_ = _square(device)
    device.compute(graph)
    del graph, _
    gc.collect()
    assert _plans(device) == 0


def test_plans_are_few_and_the_least_recent_goes(
    device: TorchDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "MOST_PLANS", 64)
    graphs = [_square(device)[0] for _ in range(70)]
    for graph in graphs:
        device.compute(graph)
        device.compute(graphs[0])
    assert _plans(device) == 64
    assert graphs[0] in device._executor._plans
    assert graphs[1] not in device._executor._plans


def test_freeing_a_buffer_forgets_its_graphs(device: TorchDevice) -> None:
    graph, x, _ = _square(device)
    device.compute(graph)
    assert x.buffer is not None
    device.free(x.buffer)
    assert _plans(device) == 0
    with pytest.raises(GraphError, match="freed"):
        device.compute(graph)


def test_nothing_runs_when_one_node_is_not_supported(device: TorchDevice) -> None:
    b = GraphBuilder()
    x = b.input(F32, [4], "x")
    y = b.mul(x, x)
    y.name = "first"
    norm = b.rms_norm(b.cast(x, F16), 1e-5)
    norm.name = "half"
    graph = b.finish(y, norm)
    place(device, graph)
    put(device, x, np.full(4, 2.0))
    with pytest.raises(UnsupportedError, match=r"RMS_NORM 'half'.*f16"):
        device.compute(graph)
    assert get(device, y).tolist() == [0.0] * 4


def test_an_illegal_graph_is_refused(device: TorchDevice) -> None:
    graph, _, y = _square(device)
    y.ne = (5, 1, 1, 1)
    with pytest.raises(GraphError, match="MUL"):
        device.compute(graph)


def _quantised(rng: np.random.Generator) -> tuple[bytes, np.ndarray]:
    kind = gguf.GGMLQuantizationType.Q8_0
    packed = gguf.quants.quantize(rng.standard_normal((3, 32)).astype(np.float32), kind)
    return packed.tobytes(), gguf.quants.dequantize(packed, kind)


def _product(device: TorchDevice) -> tuple[Graph, Tensor, Tensor, Tensor]:
    b = GraphBuilder()
    w, x = b.input(GGMLType.Q8_0, [32, 3], "w"), b.input(F32, [32], "x")
    y = b.mul_mat(w, x)
    graph = b.finish(y)
    place(device, graph)
    put(device, x, np.ones(32))
    return graph, w, x, y


@pytest.mark.parametrize("how", ["set", "part", "copy", "clear", "memset", "graph"])
def test_a_changed_weight_is_decoded_again(device: TorchDevice, how: str) -> None:
    rng = np.random.default_rng(0)
    graph, w, x, y = _product(device)
    first, second = _quantised(rng), _quantised(rng)
    device.set_tensor(w, first[0])
    device.compute(graph)
    np.testing.assert_allclose(get(device, y), first[1].sum(1), rtol=1e-5, atol=1e-5)
    want = second[1]
    if how == "set":
        device.set_tensor(w, second[0])
    elif how == "part":
        device.set_tensor(w, second[0][40:70], 40)
        mixed = first[0][:40] + second[0][40:70] + first[0][70:]
        packed = np.frombuffer(mixed, np.uint8).reshape(3, -1)
        want = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
    elif how in ("clear", "memset"):
        assert w.buffer is not None
        if how == "clear":
            device.clear(w.buffer, 0)
            put(device, x, np.ones(32))
        else:
            device.memset_tensor(w, 0, 0, w.nbytes)
        want = np.zeros((3, 32))
    else:
        b = GraphBuilder()
        other = b.input(GGMLType.Q8_0, [32, 3], "other")
        node = b.node(Op.DUP, other)
        copying = b.finish(node)
        place(device, copying)
        device.set_tensor(other, second[0])
        if how == "copy":
            device.copy_tensor(other, w)
        else:
            node.buffer, node.offset = w.buffer, w.offset
            device.compute(copying)
    device.compute(graph)
    np.testing.assert_allclose(get(device, y), want.sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("budget", [0, 400, 10**6])
@pytest.mark.parametrize("type_", [GGMLType.Q8_0, F16, GGMLType.BF16])
@pytest.mark.parametrize("planes", [1, 2])
def test_products_are_the_same_with_and_without_room_for_weights(
    budget: int, type_: GGMLType, planes: int
) -> None:
    results = []
    for limit in (10**6, budget):
        device = cpu(limit)
        b = GraphBuilder()
        w, x = b.input(type_, [64, 40, planes], "w"), b.input(F32, [64, 3, planes], "x")
        y = b.mul_mat(w, x)
        graph = b.finish(y)
        place(device, graph)
        rng = np.random.default_rng(3)
        device.set_tensor(w, bytes(rng.integers(0, 60, w.nbytes, dtype=np.uint8)))
        put(device, x, rng.standard_normal((planes, 3, 64)))
        device.compute(graph)
        device.compute(graph)
        assert device.weight_bytes <= limit
        results.append(get(device, y))
        device.close()
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_memory_that_a_graph_writes_is_never_taken_for_a_weight(device: TorchDevice) -> None:
    b = GraphBuilder()
    cache, rows = b.input(F16, [8, 4], "cache"), b.input(F32, [8, 1], "rows")
    index, x = b.input(GGMLType.I64, [1], "index"), b.input(F32, [8], "x")
    b.set_rows(cache, rows, index)
    y = b.mul_mat(b.view(cache, [8, 2], [16]), x)
    graph = b.finish(y)
    place(device, graph)
    put(device, x, np.ones(8))
    for value in (1.0, 2.0):
        put(device, rows, np.full(8, value))
        device.compute(graph)
        assert get(device, y).tolist() == [8 * value, 0.0]
    assert device.weight_bytes == 0


def _rope() -> RopeParams:
    return RopeParams(8, 2, 512, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0)


def test_shared_angles_follow_positions_that_change_within_a_run(device: TorchDevice) -> None:
    b = GraphBuilder()
    x = b.input(F32, [8, 1, 2], "x")
    positions, later = b.input(I32, [2], "positions"), b.input(I32, [2], "later")
    first = b.rope(x, positions, None, _rope())
    copied = b.node(Op.DUP, later)
    second = b.rope(x, positions, None, _rope())
    third = b.rope(x, later, None, _rope())
    graph = b.finish(first, second, third)
    place(device, graph)
    copied.buffer, copied.offset = positions.buffer, positions.offset
    rng = np.random.default_rng(0)
    put(device, x, rng.standard_normal((2, 8)))
    for start in (3, 5):
        device.set_tensor(positions, np.array([start, start + 1], np.int32).tobytes())
        device.set_tensor(later, np.array([40, 41], np.int32).tobytes())
        device.compute(graph)
        assert not np.allclose(get(device, first), get(device, second))
        np.testing.assert_array_equal(get(device, second), get(device, third))


def test_shared_masks_are_read_anew_on_every_run(device: TorchDevice) -> None:
    b = GraphBuilder()
    q = b.input(F32, [8, 1, 2], "q")
    k, v = b.input(F32, [8, 4, 2], "k"), b.input(F32, [8, 4, 2], "v")
    mask = b.input(F16, [4, 1], "mask")
    y = b.flash_attn(q, k, v, mask, AttentionParams(1.0))
    z = b.flash_attn(q, k, v, mask, AttentionParams(1.0))
    graph = b.finish(y, z)
    place(device, graph)
    values = np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32)
    put(device, v, values)
    for key in (1, 3):
        row = np.full(4, -np.inf, np.float16)
        row[key] = 0
        device.set_tensor(mask, row.tobytes())
        device.compute(graph)
        np.testing.assert_array_equal(get(device, y), values[:, key])
        np.testing.assert_array_equal(get(device, z), values[:, key])


def test_long_attention_in_tiles_equals_short_ones(device: TorchDevice) -> None:
    rng = np.random.default_rng(0)
    n, n_kv = 300, 2000
    b = GraphBuilder()
    q = b.input(F32, [8, n, 4], "q")
    k, v = b.input(F32, [8, n_kv, 2], "k"), b.input(F32, [8, n_kv, 2], "v")
    mask = b.input(F16, [n_kv, n], "mask")
    whole = b.flash_attn(q, k, v, mask, AttentionParams(0.3))
    rows = [0, 131, 299]
    single = [
        b.flash_attn(
            b.view(q, [8, 1, 4], [32, 32 * n], 32 * row),
            k,
            v,
            b.view(mask, [n_kv, 1], [2 * n_kv], 2 * n_kv * row),
            AttentionParams(0.3),
        )
        for row in rows
    ]
    graph = b.finish(whole, *single)
    place(device, graph)
    for tensor in (q, k, v):
        put(device, tensor, rng.standard_normal(tensor.ne[2::-1]))
    allowed = np.where(rng.random((n, n_kv)) < 0.5, -np.inf, 0).astype(np.float16)
    device.set_tensor(mask, allowed.tobytes())
    device.compute(graph)
    for row, part in zip(rows, single, strict=True):
        np.testing.assert_allclose(get(device, whole)[row], get(device, part), atol=1e-5)


def test_views_of_one_buffer_in_one_graph_run_in_order(device: TorchDevice) -> None:
    b = GraphBuilder()
    x = b.input(F32, [4, 2], "x")
    low, high = b.view(x, [4], [], 0), b.view(x, [4], [], 16)
    total = b.add(low, high)
    doubled = b.node(Op.SCALE, total, params=Params.pack("2f", 2.0, 0.0))
    graph = b.finish(doubled)
    place(device, graph)
    doubled.buffer, doubled.offset = low.buffer, low.offset
    put(device, x, [[1, 2, 3, 4], [10, 20, 30, 40]])
    device.compute(graph)
    device.compute(graph)
    assert get(device, x)[0].tolist() == [2 * (2 * (a + 10 * a) + 10 * a) for a in (1, 2, 3, 4)]


def test_a_compute_that_fails_leaves_the_device_usable(device: TorchDevice) -> None:
    b = GraphBuilder()
    table, index = b.input(F32, [4, 3], "table"), b.input(I32, [1], "index")
    y = b.get_rows(table, index)
    graph = b.finish(y)
    place(device, graph)
    put(device, table, np.arange(12).reshape(3, 4))
    device.set_tensor(index, np.array([3], np.int32).tobytes())
    with pytest.raises(GraphError):
        device.compute(graph)
    device.set_tensor(index, np.array([2], np.int32).tobytes())
    device.compute(graph)
    assert get(device, y).tolist() == [8, 9, 10, 11]


def test_buffers_of_another_device_are_refused_in_graphs(device: TorchDevice) -> None:
    graph, x, _ = _square(device)
    other = cpu()
    stranger = other.alloc(64, BufferUsage.ANY)
    x.buffer = stranger
    with pytest.raises(GraphError):
        device.compute(graph)
