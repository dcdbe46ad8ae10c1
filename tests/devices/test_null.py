"""The null device keeps the contract's books, so that what passes on it is used rightly."""

from collections.abc import Callable

import pytest

from app.devices.base import BufferUsage, Device, DeviceKind
from app.devices.null import NullDevice
from app.errors import DeviceLostError, GraphError, OutOfMemoryError
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType


def _tensor(device: Device, size: int = 64) -> Tensor:
    tensor = new_tensor(GGMLType.F32, [16], "x")
    tensor.buffer = device.alloc(size, BufferUsage.ANY)
    return tensor


def test_it_is_a_device() -> None:
    device: Device = NullDevice("NULL3", kind=DeviceKind.GPU)
    assert device.info.name == "NULL3"
    assert device.info.kind is DeviceKind.GPU
    assert device.unsupported([]) is None
    assert device.alignment() > 0


def test_memory_runs_out_at_the_configured_size_and_comes_back() -> None:
    device = NullDevice(total=100)
    first = device.alloc(60, BufferUsage.WEIGHTS)
    assert (device.memory().free, device.memory().total, device.max_size()) == (40, 100, 100)
    with pytest.raises(OutOfMemoryError, match="NULL0: 41 bytes asked, 40 of 100 free"):
        device.alloc(41, BufferUsage.COMPUTE)
    device.free(first)
    assert device.memory().free == 100
    assert device.buffers == frozenset()


def test_calls_and_bytes_are_counted() -> None:
    device = NullDevice()
    x = _tensor(device)
    for _ in range(3):
        device.set_tensor(x, bytes(32), 32)
    assert device.get_tensor(x, 16, 48).result() == bytes(48)
    b = GraphBuilder()
    graph = b.finish(b.scale(x, 2.0))
    device.compute(graph)
    device.compute(graph)
    device.synchronize()
    assert device.calls["set_tensor"] == 3
    assert (device.bytes_written, device.bytes_read) == (96, 48)
    assert device.graphs == [graph, graph]


@pytest.mark.parametrize(("offset", "size"), [(-1, 4), (0, 65), (64, 1), (0, -1)])
def test_ranges_outside_a_tensor_are_refused(offset: int, size: int) -> None:
    device = NullDevice()
    x = _tensor(device)
    with pytest.raises(GraphError, match="expected them inside"):
        device.get_tensor(x, offset, size)
    with pytest.raises(GraphError, match="expected them inside"):
        device.memset_tensor(x, 0, offset, size)
    if size >= 0:
        with pytest.raises(GraphError, match="expected them inside"):
            device.set_tensor(x, bytes(size), offset)


def test_a_tensor_outside_its_buffer_is_refused() -> None:
    device = NullDevice()
    x = _tensor(device, 63)
    with pytest.raises(GraphError, match="64 bytes at 0 of 63"):
        device.set_tensor(x, bytes(4))


def test_buffers_of_others_and_freed_ones_are_refused() -> None:
    device, other = NullDevice(), NullDevice()
    x = _tensor(other)
    assert x.buffer is not None
    foreign = x.buffer
    uses: tuple[Callable[[], object], ...] = (
        lambda: device.set_tensor(x, bytes(4)),
        lambda: device.copy_tensor(x, x),
        lambda: device.clear(foreign, 0),
        lambda: device.free(foreign),
    )
    for use in uses:
        with pytest.raises(GraphError, match="not of this device, or was freed"):
            use()
    buffer = device.alloc(8, BufferUsage.ANY)
    device.free(buffer)
    with pytest.raises(GraphError, match="was freed"):
        device.free(buffer)


def test_a_lost_device_raises_from_every_call() -> None:
    device = NullDevice()
    x = _tensor(device)
    assert x.buffer is not None
    buffer = x.buffer
    device.lose("the cable was pulled")
    uses: tuple[Callable[[], object], ...] = (
        device.memory,
        device.alignment,
        device.max_size,
        device.synchronize,
        lambda: device.alloc(1, BufferUsage.ANY),
        lambda: device.alloc_size(x),
        lambda: device.clear(buffer, 0),
        lambda: device.free(buffer),
        lambda: device.init_tensor(x),
        lambda: device.set_tensor(x, b""),
        lambda: device.get_tensor(x, 0, 0),
        lambda: device.compute(Graph()),
        lambda: device.unsupported([]),
    )
    for use in uses:
        with pytest.raises(DeviceLostError, match="NULL0: the cable was pulled"):
            use()
    device.close()
    assert device.buffers == frozenset()
