"""Four times the nodes take about four times as long, whatever they have to do with each other.

A client may send a hundred thousand nodes in one graph. Were each held against all others, the
graph would keep the device from everybody else for hours.
"""

import time
from collections.abc import Callable
from typing import Final

import pytest

from app.devices.base import BufferUsage, Device
from app.errors import OutOfMemoryError
from app.ggml.graph import Graph
from app.ggml.op_params import Params, RopeParams
from app.ggml.ops import Op
from app.ggml.tensor import Buffer, Tensor, new_tensor
from app.ggml.types import GGMLType
from tests.devices.graphs import cpu
from tests.helpers.native import native_cpu

SMALL: Final = 2000
FACTOR: Final = 4
# Linear is 4, quadratic 16; the rest is for a busy machine, and there are several tries.
MOST_RATIO: Final = 9.0
TRIES: Final = 8
SIZE: Final = 1 << 26

TWICE: Final = Params.pack("2f", 2.0, 0.0)
F32: Final = GGMLType.F32


def at(
    buffer: Buffer, offset: int, ne: tuple[int, ...], type_: GGMLType = F32, name: str = "x"
) -> Tensor:
    tensor = new_tensor(type_, ne, name)
    tensor.buffer, tensor.offset = buffer, offset
    return tensor


def node(result: Tensor, op: Op, params: Params, *sources: Tensor) -> Tensor:
    result.op, result.params, result.src = op, params, sources
    return result


def apart(b: Buffer, i: int) -> Tensor:
    """No node touches what another does."""
    return node(at(b, 128 * i + 64, (16,)), Op.SCALE, TWICE, at(b, 128 * i, (16,)))


def together(b: Buffer, i: int) -> Tensor:
    """Every node writes the same bytes."""
    return node(at(b, 64, (16,)), Op.SCALE, TWICE, at(b, 0, (16,)))


def weights(b: Buffer, i: int) -> Tensor:
    """Every node has a quantised weight of its own, and results that do not touch."""
    weight = at(b, (1 << 22) + 320 * i, (32, 16), GGMLType.Q4_0)
    return node(at(b, 128 * i + 4096, (16,)), Op.MUL_MAT, Params(), weight, at(b, 0, (32,)))


def angles(b: Buffer, i: int) -> Tensor:
    """Every node rotates by angles of its own."""
    rope = RopeParams(16, 0, 128, 10000.0 + i, 1.0, 0.0, 1.0, 32.0, 1.0)
    positions = at(b, 0, (1,), GGMLType.I32)
    return node(at(b, 8192, (16, 1, 1)), Op.ROPE, rope.pack(), at(b, 4096, (16, 1, 1)), positions)


def masks(b: Buffer, i: int) -> Tensor:
    """Every node has a mask of its own."""
    mask = at(b, (1 << 22) + 64 * i, (16, 1), GGMLType.F16)
    return node(
        at(b, 4096, (16, 1)), Op.SOFT_MAX, Params.pack("2f", 1.0, 0.0), at(b, 0, (16,)), mask
    )


def seconds(device: Device, graph: Graph) -> float:
    begin = time.process_time()
    try:
        device.compute(graph)
    except OutOfMemoryError:
        pytest.skip("this machine has not got the memory")
    return time.process_time() - begin


@pytest.mark.parametrize("make", [apart, together, weights, angles, masks])
@pytest.mark.parametrize("open_device", [native_cpu, cpu])
def test_the_time_of_a_graph_is_linear_in_its_nodes(
    make: Callable[[Buffer, int], Tensor], open_device: Callable[[], Device]
) -> None:
    device = open_device()
    buffer = device.alloc(SIZE, BufferUsage.ANY)
    ratios = []
    for _ in range(TRIES):
        small, large = (
            seconds(device, Graph([make(buffer, i) for i in range(n)]))
            for n in (SMALL, FACTOR * SMALL)
        )
        ratios.append(large / small)
        if ratios[-1] < MOST_RATIO:
            break
    device.close()
    assert min(ratios) < MOST_RATIO, ratios
