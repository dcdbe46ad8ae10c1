"""Random graphs: a typed error or success, nothing else, and never a byte outside the result.

Nodes are made of any operation, types, shapes, strides and parameters; most are refused, and those
that pass the verifier must not surprise a kernel.
"""

import random
import struct
from collections.abc import Callable

import numpy as np
import pytest

from app.devices.base import BufferUsage, Device
from app.errors import GraphError, LlamaServeError
from app.ggml.graph import Graph, next_uid
from app.ggml.op_params import Params
from app.ggml.ops import VIEW_OPS, GluOp, Op, UnaryOp
from app.ggml.shapes import infer
from app.ggml.tensor import Buffer, Shape, Tensor, contiguous_strides
from app.ggml.types import TRAITS, GGMLType
from app.kernels.torch_ref.ops import reference_table
from tests.devices.graphs import cpu
from tests.helpers.native import native_cpu

SIZE = 1 << 16
OPS = [op for op in Op if op not in VIEW_OPS]
F32, F16, I32, I64 = GGMLType.F32, GGMLType.F16, GGMLType.I32, GGMLType.I64
TYPES = [F32, F32, F32, F32, F16, F16, I32, I32, I64, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_K]
COUNTS = [0, 1, 1, 1, 2, 2, 3, 4, 6]


class Generator:
    """Makes one random graph after another in one buffer."""

    def __init__(self, seed: int, buffer: Buffer) -> None:
        self._dice = random.Random(seed)
        self._buffer = buffer

    def graph(self) -> tuple[Graph, Tensor]:
        """Return a graph of one node over random leaves, and the node."""
        op = self._dice.choice(OPS)
        shape = self._shape()
        sources = tuple(self._source(shape) for _ in range(self._dice.choice([1, 2, 2, 3, 4, 5])))
        params = self._params()
        try:
            type_, ne = infer(op, sources, params)
        except GraphError:
            type_, ne = self._dice.choice(TYPES), shape
        node = self._tensor(type_, ne)
        if op in (Op.SET_ROWS, Op.CPY):
            target = sources[min(len(sources) - 1, 2 if op == Op.SET_ROWS else 1)]
            if target is not None:
                node.type, node.ne, node.nb = target.type, target.ne, target.nb
                node.view_src, node.offset = target, target.offset
        node.op, node.params, node.src = op, params, sources
        return Graph([node], next_uid()), node

    def _shape(self) -> Shape:
        a, b, c, d = (self._dice.choice(COUNTS) for _ in range(4))
        return (a, b, c, d)

    def _source(self, near: Shape) -> Tensor | None:
        dice = self._dice
        if dice.random() < 0.05:
            return None
        ne = near if dice.random() < 0.6 else self._shape()
        if dice.random() < 0.3:
            ne = (ne[0], dice.choice(COUNTS), 1, 1)
        if dice.random() < 0.1:
            ne = (ne[1], 1, 1, 1)
        return self._tensor(dice.choice(TYPES), ne)

    def _tensor(self, type_: GGMLType, ne: Shape) -> Tensor:
        dice, block = self._dice, TRAITS[type_].block_size
        if block > 1:
            ne = (block * max(1, ne[0] % 3), *ne[1:])
        nb = list(contiguous_strides(type_, ne))
        if dice.random() < 0.2:
            nb[dice.randrange(4)] = dice.choice([0, 2, 4, 64, 128, 4096])
        if dice.random() < 0.2:
            order = dice.sample(range(1, 4), 3)
            ne = (ne[0], *(ne[i] for i in order))  # type: ignore[assignment]  # three of them
            nb = [nb[0], *(nb[i] for i in order)]
        offset = 64 * dice.randrange(SIZE // 64)
        return Tensor(type_, ne, (nb[0], nb[1], nb[2], nb[3]), buffer=self._buffer, offset=offset)

    def _params(self) -> Params:
        """Zeros, small integers, floats of any kind, or bytes."""
        dice = self._dice
        words = [
            dice.choice([0, 0, 1, 2, 4, dice.randrange(len(UnaryOp)), dice.randrange(len(GluOp))])
            for _ in range(16)
        ]
        floats = [dice.choice([0.0, 1.0, -1.0, 0.5, 10000.0, 1e38, float("inf"), float("nan")])]
        raw = bytearray(struct.pack("<16i", *words))
        for at in range(16):
            if dice.random() < 0.3:
                struct.pack_into("<f", raw, 4 * at, dice.choice([*floats, 1.0, 0.25, 8.0]))
        return Params(dice.randbytes(64) if dice.random() < 0.05 else bytes(raw))


def _run(device: Device, generator: Generator, rounds: int) -> dict[Op, int]:
    """Run `rounds` graphs; count those that succeeded, by operation."""
    succeeded: dict[Op, int] = {}
    root = Tensor(GGMLType.I8, (SIZE, 1, 1, 1), (1, SIZE, SIZE, SIZE))
    root.buffer = generator._buffer
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
    generator = Generator(seed, device.alloc(SIZE, BufferUsage.ANY))
    succeeded = _run(device, generator, 2500)
    # The generator must reach the kernels, or this test would prove nothing.
    assert len(succeeded) > 12
    assert set(succeeded) <= set(reference_table().ops)
    device.close()
