"""Random graphs: a typed error or success, nothing else, and never a byte outside the result.

Nodes are made of any operation, types, shapes, strides and parameters; most are refused, and those
that pass the verifier must not surprise a kernel.
"""

import random
from collections.abc import Callable

import numpy as np
import pytest

from app.devices.base import BufferUsage, Device
from app.errors import LlamaServeError
from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.kernels.torch_ref.ops import reference_table
from tests.devices.graphs import cpu
from tests.fuzz.wild import SIZE, WildGraphs
from tests.helpers.native import native_cpu


def _run(device: Device, seed: int, rounds: int) -> dict[Op, int]:
    """Run `rounds` graphs; count those that succeeded, by operation."""
    buffer = device.alloc(SIZE, BufferUsage.ANY)
    generator = WildGraphs(random.Random(seed), buffer)
    succeeded: dict[Op, int] = {}
    root = Tensor(GGMLType.I8, (SIZE, 1, 1, 1), (1, SIZE, SIZE, SIZE))
    root.buffer = buffer
    noise = np.random.default_rng(0).integers(0, 5, SIZE, dtype=np.uint8)
    for _ in range(rounds):
        graph, node = generator.graph()
        device.set_tensor(root, noise.tobytes())
        try:
            device.compute(graph)
        except LlamaServeError:
            continue
        succeeded[node.op] = succeeded.get(node.op, 0) + 1
        after = np.frombuffer(device.get_tensor(root, 0, SIZE).result(), np.uint8)
        outside = np.ones(SIZE, bool)
        outside[node.offset : node.offset + node.nbytes] = False
        np.testing.assert_array_equal(after[outside], noise[outside])
    return succeeded


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("open_device", [cpu, native_cpu])
def test_random_graphs_succeed_or_are_refused(seed: int, open_device: Callable[[], Device]) -> None:
    device = open_device()
    succeeded = _run(device, seed, 2500)
    # The generator must reach the kernels, or this test would prove nothing.
    assert len(succeeded) > 12
    assert set(succeeded) <= set(reference_table().ops)
    device.close()
