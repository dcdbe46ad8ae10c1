"""Grouped weights never show: what is read is what was written, whatever has been multiplied."""

from collections.abc import Iterator

import numpy as np
import pytest

from app.devices.base import BufferUsage
from app.devices.native_buffer import NativeBuffer
from app.devices.native_device import NativeDevice
from app.errors import GraphError
from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.ops import Op
from app.ggml.tensor import new_tensor
from app.ggml.types import GGMLType
from tests.devices.graphs import get, place, put
from tests.helpers.native import native_cpu
from tests.kernels.harness import decode, random_blocks

F32, Q4_1, Q8_0 = GGMLType.F32, GGMLType.Q4_1, GGMLType.Q8_0
K, N = 64, 41
BLOCKS = N * K // 32


@pytest.fixture
def device() -> Iterator[NativeDevice]:
    device = native_cpu(2)
    yield device
    device.close()


class Product:
    """x times a weight of `type_`, placed, with the weight's bytes."""

    def __init__(self, device: NativeDevice, type_: GGMLType = Q4_1, columns: int = 1) -> None:
        self.device = device
        b = GraphBuilder()
        self.weight = b.input(type_, [K, N], "weight")
        self.x = b.input(F32, [K, columns], "x")
        self.y = b.mul_mat(self.weight, self.x)
        self.graph: Graph = b.finish(self.y)
        place(device, self.graph)
        rng = np.random.default_rng(columns)
        self.values = rng.standard_normal((columns, K)).astype(np.float32)
        put(device, self.x, self.values)
        self.write(1)

    def write(self, seed: int) -> None:
        """Give the weight other bytes."""
        self.bytes = random_blocks(np.random.default_rng(seed), self.weight.type, BLOCKS)
        self.device.set_tensor(self.weight, self.bytes)

    def check(self) -> None:
        """Run and compare with the exact product."""
        self.device.compute(self.graph)
        matrix = decode(self.weight.type, self.weight.ne, self.bytes)[0, 0]
        want = np.squeeze(self.values @ matrix.T)
        error = np.sum((get(self.device, self.y) - want) ** 2) / np.sum(want**2)
        assert error < 5e-4

    def is_grouped(self) -> bool:
        """Whether the weight stands in groups now."""
        buffer = self.weight.buffer
        assert isinstance(buffer, NativeBuffer)
        return self.weight.offset in buffer.regions

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """Read bytes of the weight."""
        size = len(self.bytes) - offset if size is None else size
        return self.device.get_tensor(self.weight, offset, size).result()


@pytest.mark.parametrize("columns", [1, 8, 40])
def test_a_weight_is_grouped_in_its_place_and_read_as_it_was_written(
    device: NativeDevice, columns: int
) -> None:
    product = Product(device, columns=columns)
    assert not product.is_grouped()
    product.check()
    assert product.is_grouped()
    assert product.read() == product.bytes
    assert not product.is_grouped()
    product.check()
    assert product.is_grouped()


def test_reading_one_byte_is_reading(device: NativeDevice) -> None:
    product = Product(device)
    product.check()
    assert product.read(777, 1) == product.bytes[777:778]
    product.check()


def test_new_bytes_are_multiplied_with(device: NativeDevice) -> None:
    product = Product(device)
    product.check()
    product.write(2)
    product.check()
    half = random_blocks(np.random.default_rng(3), Q4_1, BLOCKS)[:600]
    device.set_tensor(product.weight, half, 100)
    product.bytes = product.bytes[:100] + half + product.bytes[700:]
    assert product.read() == product.bytes
    product.check()


def test_filling_and_copying_see_the_plain_form(device: NativeDevice) -> None:
    product = Product(device, Q8_0)
    other = new_tensor(Q8_0, [K, N], "other")
    other.buffer = device.alloc(other.nbytes, BufferUsage.ANY)
    product.check()
    device.copy_tensor(product.weight, other)
    assert device.get_tensor(other, 0, other.nbytes).result() == product.bytes
    product.check()
    new = random_blocks(np.random.default_rng(9), Q8_0, BLOCKS)
    device.set_tensor(other, new)
    device.copy_tensor(other, product.weight)
    product.bytes = new
    product.check()
    device.memset_tensor(product.weight, 0, 34 * 5, 34)
    product.bytes = new[: 34 * 5] + bytes(34) + new[34 * 6 :]
    assert product.read() == product.bytes
    product.check()
    assert product.weight.buffer is not None
    device.clear(product.weight.buffer, 0)
    assert not any(product.read())


def test_bytes_beside_a_grouped_weight_leave_it_alone(device: NativeDevice) -> None:
    product = Product(device)
    product.check()
    put(device, product.x, product.values)
    get(device, product.y)
    assert product.is_grouped()


def test_rows_are_gathered_from_either_form(device: NativeDevice) -> None:
    product = Product(device)
    b = GraphBuilder()
    indices = b.input(GGMLType.I32, [5], "indices")
    rows = b.get_rows(product.weight, indices)
    graph = b.finish(rows)
    place(device, graph)
    chosen = np.array([40, 0, 17, 31, 32], np.int32)
    device.set_tensor(indices, chosen.tobytes())
    want = decode(Q4_1, product.weight.ne, product.bytes)[0, 0][chosen].astype(np.float32)
    for _ in range(2):
        device.compute(graph)
        np.testing.assert_array_equal(get(device, rows), want)
        product.check()


def test_a_graph_that_reads_the_plain_form_gets_it(device: NativeDevice) -> None:
    product = Product(device)
    b = GraphBuilder()
    copied = b.cast(product.weight, F32)
    graph = b.finish(copied)
    place(device, graph)
    want = decode(Q4_1, product.weight.ne, product.bytes)[0, 0].astype(np.float32)
    for _ in range(2):
        product.check()
        assert product.is_grouped()
        device.compute(graph)
        assert not product.is_grouped()
        np.testing.assert_array_equal(get(device, copied), want)


def test_a_weight_that_the_same_graph_reads_plainly_stays_plain(device: NativeDevice) -> None:
    product = Product(device)
    b = GraphBuilder()
    total = b.add(b.mul_mat(product.weight, product.x), b.mul_mat(product.weight, product.x))
    copied = b.cast(product.weight, F32)
    graph = b.finish(total, copied)
    place(device, graph)
    device.compute(graph)
    assert not product.is_grouped()
    matrix = decode(Q4_1, product.weight.ne, product.bytes)[0, 0]
    want = 2 * np.squeeze(product.values @ matrix.T)
    assert np.sum((get(device, total) - want) ** 2) / np.sum(want**2) < 5e-4


@pytest.mark.parametrize("read_plainly", [False, True])
def test_experts_are_grouped_in_their_place_too(device: NativeDevice, read_plainly: bool) -> None:
    b = GraphBuilder()
    experts, x = b.input(Q4_1, [K, 32, 6], "experts"), b.input(F32, [K, 1, 3], "x")
    indices = b.input(GGMLType.I32, [2, 3], "indices")
    y = b.node(Op.MUL_MAT_ID, experts, x, indices)
    graph = b.finish(y, *([b.cast(experts, F32)] if read_plainly else []))
    place(device, graph)
    data = random_blocks(np.random.default_rng(0), Q4_1, 6 * 32 * K // 32)
    values = np.random.default_rng(1).standard_normal((3, K))
    chosen = np.array([[0, 5], [5, 2], [0, 0]], np.int32)
    device.set_tensor(experts, data)
    put(device, x, values)
    device.set_tensor(indices, chosen.tobytes())
    for _ in range(2):
        device.compute(graph)
        buffer = experts.buffer
        assert isinstance(buffer, NativeBuffer)
        assert (experts.offset in buffer.regions) == (not read_plainly)
        matrices = decode(Q4_1, experts.ne, data)[0]
        want = np.einsum("tunk,tk->tun", matrices[chosen], values)
        assert np.sum((get(device, y) - want) ** 2) / np.sum(want**2) < 5e-4
        assert device.get_tensor(experts, 0, len(data)).result() == data


def test_indices_that_the_result_overwrites_harm_nobody(device: NativeDevice) -> None:
    b = GraphBuilder()
    experts, x = b.input(Q4_1, [K, 64, 4], "experts"), b.input(F32, [K, 1, 64], "x")
    indices = b.input(GGMLType.I32, [4, 64], "indices")
    y = b.node(Op.MUL_MAT_ID, experts, x, indices)
    graph = b.finish(y)
    place(device, graph)
    y.offset = indices.offset
    for _ in range(20):
        device.set_tensor(indices, bytes(4 * indices.n_elements))
        try:
            device.compute(graph)
        except GraphError as error:
            assert "indices" in str(error)


def test_two_looks_at_the_same_bytes_take_turns(device: NativeDevice) -> None:
    product = Product(device)
    b = GraphBuilder()
    # The same bytes as fewer, longer rows.
    other = b.input(Q4_1, [2 * K, 20], "other")
    other.buffer, other.offset = product.weight.buffer, product.weight.offset
    x = b.input(F32, [2 * K, 1], "x")
    y = b.mul_mat(other, x)
    graph = b.finish(y)
    place(device, graph)
    values = np.linspace(-1, 1, 2 * K, dtype=np.float32)
    put(device, x, values)
    matrix = decode(Q4_1, other.ne, product.bytes[: other.nbytes])[0, 0]
    for _ in range(2):
        product.check()
        device.compute(graph)
        want = matrix @ values
        assert np.sum((get(device, y) - want) ** 2) / np.sum(want**2) < 5e-4
    assert product.read() == product.bytes
