"""Buffers and transfers of a torch device: bounds, zeroed and untouched memory, honest figures."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from app.devices import torch_memory
from app.devices.base import BufferUsage, DeviceMemory
from app.devices.host_memory import touched_bytes
from app.devices.torch_buffer import TorchBuffer
from app.devices.torch_device import TorchDevice
from app.errors import GraphError, OutOfMemoryError
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.ops import Op
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from tests.devices.graphs import cpu, get, place, put

GIB = 1 << 30


@pytest.fixture
def device() -> Iterator[TorchDevice]:
    device = cpu()
    yield device
    device.close()


def _tensor(device: TorchDevice, n: int = 100, offset: int = 64) -> Tensor:
    tensor = new_tensor(GGMLType.F32, [n], "t")
    tensor.buffer = device.alloc(offset + tensor.nbytes + 64, BufferUsage.ANY)
    tensor.offset = offset
    return tensor


def test_bytes_come_back_from_every_place(device: TorchDevice) -> None:
    tensor = _tensor(device)
    data = bytes(range(200)) * 2
    device.set_tensor(tensor, data)
    assert device.get_tensor(tensor, 0, 400).result() == data
    device.set_tensor(tensor, memoryview(b"abc"), 7)
    assert device.get_tensor(tensor, 5, 7).result() == data[5:7] + b"abc" + data[10:12]
    device.set_tensor(tensor, bytearray(b""), 400)
    assert device.get_tensor(tensor, 400, 0).result() == b""


def test_new_memory_is_zero_and_costs_nothing_until_touched(device: TorchDevice) -> None:
    before = touched_bytes()
    buffer = device.alloc(2 * GIB, BufferUsage.ANY)
    assert touched_bytes() - before < 64 << 20
    tensor = new_tensor(GGMLType.F32, [1000], "end")
    tensor.buffer, tensor.offset = buffer, 2 * GIB - tensor.nbytes
    assert not any(device.get_tensor(tensor, 0, tensor.nbytes).result())


def test_memory_of_a_freed_buffer_is_not_seen_by_the_next(device: TorchDevice) -> None:
    for _ in range(3):
        tensor = _tensor(device, 1000)
        assert not any(device.get_tensor(tensor, 0, tensor.nbytes).result())
        device.set_tensor(tensor, b"\xaa" * tensor.nbytes)
        assert tensor.buffer is not None
        device.free(tensor.buffer)


def test_freeing_a_buffer_returns_its_memory_although_graphs_used_it(device: TorchDevice) -> None:
    b = GraphBuilder()
    x = b.input(GGMLType.F32, [16 << 20], "x")
    graph = b.finish(b.mul(x, x))
    before = touched_bytes()
    buffer = place(device, graph)
    device.compute(graph)
    assert touched_bytes() - before > 60 << 20
    device.free(buffer)
    assert touched_bytes() - before < 32 << 20


def test_buffers_are_aligned(device: TorchDevice) -> None:
    for size in (1, 63, 1000, 1 << 20):
        buffer = device.alloc(size, BufferUsage.ANY)
        assert isinstance(buffer, TorchBuffer)
        assert buffer.size == size
        assert buffer.storage.data_ptr() % 64 == 0
    assert device.alloc(0, BufferUsage.ANY).size == 0


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 4), (0, 401), (397, 4), (400, 1), (1 << 62, 8), (0, 1 << 62)]
)
def test_transfers_outside_the_tensor_are_refused(
    device: TorchDevice, offset: int, size: int
) -> None:
    tensor = _tensor(device)
    with pytest.raises(GraphError, match="expected within"):
        device.get_tensor(tensor, offset, size)
    with pytest.raises(GraphError, match="expected within"):
        device.memset_tensor(tensor, 1, offset, size)
    if size < 1 << 20:
        with pytest.raises(GraphError, match="expected within"):
            device.set_tensor(tensor, bytes(size), offset)


@pytest.mark.parametrize(("offset", "nb1"), [(600, 40), (-64, 40), (0, 200), (0, -40)])
def test_tensors_outside_their_buffer_are_refused(
    device: TorchDevice, offset: int, nb1: int
) -> None:
    tensor = new_tensor(GGMLType.F32, [10, 4], "t")
    tensor.buffer, tensor.offset = device.alloc(600, BufferUsage.ANY), offset
    tensor.nb = (4, nb1, 160, 160)
    with pytest.raises(GraphError):
        device.get_tensor(tensor, 0, 4)


def test_buffers_of_others_and_freed_ones_are_refused(device: TorchDevice) -> None:
    tensor = _tensor(device)
    buffer = tensor.buffer
    assert buffer is not None
    other = cpu()
    with pytest.raises(GraphError):
        other.get_tensor(tensor, 0, 4)
    with pytest.raises(GraphError):
        other.free(buffer)
    device.free(buffer)
    for use in (
        lambda: device.get_tensor(tensor, 0, 4),
        lambda: device.set_tensor(tensor, b"1234"),
        lambda: device.free(buffer),
        lambda: device.clear(buffer, 0),
    ):
        with pytest.raises(GraphError):
            use()
    tensor.buffer = None
    with pytest.raises(GraphError, match="no buffer"):
        device.get_tensor(tensor, 0, 4)


def test_clear_and_memset_fill_what_they_name(device: TorchDevice) -> None:
    tensor = _tensor(device)
    assert tensor.buffer is not None
    device.clear(tensor.buffer, 0x5A)
    device.memset_tensor(tensor, 0x101, 3, 2)
    assert device.get_tensor(tensor, 2, 4).result() == b"\x5a\x01\x01\x5a"


def test_copy_moves_bytes_within_and_between_buffers(device: TorchDevice) -> None:
    a, b, c = _tensor(device), _tensor(device), new_tensor(GGMLType.F32, [100], "c")
    c.buffer, c.offset = a.buffer, 0
    data = np.arange(400, dtype=np.uint16).astype(np.uint8).tobytes()
    device.set_tensor(a, data)
    device.copy_tensor(a, b)
    assert device.get_tensor(b, 0, 400).result() == data
    device.copy_tensor(a, c)  # 64 bytes further down in the same buffer
    assert device.get_tensor(c, 0, 400).result() == data
    with pytest.raises(GraphError, match="equal sizes"):
        device.copy_tensor(a, _tensor(device, 99))


def test_a_buffer_that_cannot_fit_is_refused_with_the_figures(device: TorchDevice) -> None:
    memory = device.memory()
    with pytest.raises(OutOfMemoryError, match=rf"CPU: {memory.total + 1} bytes asked, \d+ of"):
        device.alloc(memory.total + 1, BufferUsage.ANY)
    with pytest.raises(OutOfMemoryError):
        device.alloc(1 << 62, BufferUsage.ANY)
    with pytest.raises(GraphError):
        device.alloc(-1, BufferUsage.ANY)


def test_untouched_buffers_count_as_used(
    device: TorchDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_memory, "host_memory", lambda: DeviceMemory(4 * GIB, 8 * GIB))
    assert device.memory().free <= 4 * GIB
    buffer = device.alloc(3 * GIB, BufferUsage.ANY)
    assert device.memory().free < 2 * GIB
    with pytest.raises(OutOfMemoryError):
        device.alloc(2 * GIB, BufferUsage.ANY)
    device.free(buffer)
    device.free(device.alloc(2 * GIB, BufferUsage.ANY))


def test_decoded_weights_give_way_to_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    device = cpu()
    b = GraphBuilder()
    weight, x = b.input(GGMLType.Q8_0, [1024, 256], "w"), b.input(GGMLType.F32, [1024], "x")
    graph = b.finish(b.mul_mat(weight, x))
    place(device, graph)
    device.compute(graph)
    assert device.weight_bytes == 4 * 1024 * 256
    free = device.memory().free
    assert device.weight_bytes + free > 0
    have = 1 << 20
    monkeypatch.setattr(torch_memory, "host_memory", lambda: DeviceMemory(have, 8 * GIB))
    monkeypatch.setattr(
        torch_memory.MemoryProbe, "free", lambda self, promised, cached: have - cached + 10
    )
    device.alloc(have, BufferUsage.ANY)
    assert device.weight_bytes == 0
    device.close()


def test_several_threads_may_compute_and_transfer_at_once(device: TorchDevice) -> None:
    failures: list[BaseException] = []

    def client(seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            b = GraphBuilder()
            a, x = b.input(GGMLType.F32, [32, 8], "a"), b.input(GGMLType.F32, [32, 3], "x")
            y = b.soft_max(b.mul_mat(a, x), None, 1.0)
            graph = b.finish(y)
            buffer = place(device, graph)
            for _ in range(30):
                left, right = rng.standard_normal((8, 32)), rng.standard_normal((3, 32))
                put(device, a, left)
                put(device, x, right)
                device.compute(graph)
                logits = right @ left.T
                want = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
                np.testing.assert_allclose(get(device, y), want, rtol=1e-4)
            device.free(buffer)
        except BaseException as error:  # noqa: BLE001  # reported by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("stride", [16, 64, 1 << 20])
def test_the_stride_of_a_dimension_of_one_moves_nothing(stride: int) -> None:
    device = cpu()
    buffer = device.alloc(4096, BufferUsage.ANY)
    device.clear(buffer, 7)
    source = Tensor(GGMLType.F32, (2, 2, 1, 2), (4, 8, 8, 16), buffer=buffer)
    node = Tensor(GGMLType.F32, source.ne, (4, 8, stride, 16), Op.TRI, buffer=buffer, offset=1024)
    node.src = (source,)
    device.compute(Graph([node], 0))
    whole = Tensor(GGMLType.I8, (4096, 1, 1, 1), (1, 4096, 4096, 4096), buffer=buffer)
    data = np.frombuffer(device.get_tensor(whole, 0, 4096).result(), np.uint8)
    (changed,) = np.nonzero(data != 7)
    assert changed.size
    assert 1024 <= changed.min() <= changed.max() < 1024 + node.nbytes
    device.close()
