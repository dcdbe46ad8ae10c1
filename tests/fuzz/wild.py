"""Random graphs of one node: any operation, types, shapes, strides and parameters, in one buffer.

Most are refused; those that pass the verifier must not surprise a kernel.
"""

import random
import struct
from typing import Final

from app.errors import GraphError
from app.ggml.graph import Graph, next_uid
from app.ggml.op_params import Params
from app.ggml.ops import VIEW_OPS, GluOp, Op, UnaryOp
from app.ggml.shapes import infer
from app.ggml.tensor import Buffer, Shape, Tensor, contiguous_strides
from app.ggml.types import TRAITS, GGMLType

SIZE: Final = 1 << 16
_OPS: Final = [op for op in Op if op not in VIEW_OPS]
_F32, _F16, _I32, _I64 = GGMLType.F32, GGMLType.F16, GGMLType.I32, GGMLType.I64
_TYPES: Final = (
    *(_F32, _F32, _F32, _F32, _F16, _F16, _I32, _I32, _I64),
    *(GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_K),
)
_COUNTS: Final = (0, 1, 1, 1, 2, 2, 3, 4, 6)
# Sizes that only fit into memory where strides let elements share it.
_HUGE: Final = (2**20, 2**31 - 1, 2**32 - 1)


class WildGraphs:
    """Makes one random graph after another in a buffer of `SIZE` bytes; `huge` is how often a
    shape has a dimension that no memory would hold.
    """

    def __init__(self, dice: random.Random, buffer: Buffer, huge: float = 0.0) -> None:
        self._dice = dice
        self._buffer = buffer
        self._huge = huge

    def graph(self) -> tuple[Graph, Tensor]:
        """Return a graph of one node over random leaves, and the node."""
        op = self._dice.choice(_OPS)
        shape = self._shape()
        sources = tuple(self._source(shape) for _ in range(self._dice.choice([1, 2, 2, 3, 4, 5])))
        params = self._params()
        try:
            type_, ne = infer(op, sources, params)
        except GraphError:
            type_, ne = self._dice.choice(_TYPES), shape
        node = self._tensor(type_, ne)
        if op in (Op.SET_ROWS, Op.CPY):
            target = sources[min(len(sources) - 1, 2 if op == Op.SET_ROWS else 1)]
            if target is not None:
                node.type, node.ne, node.nb = target.type, target.ne, target.nb
                node.view_src, node.offset = target, target.offset
        node.op, node.params, node.src = op, params, sources
        return Graph([node], next_uid()), node

    def _shape(self) -> Shape:
        a, b, c, d = (self._dice.choice(_COUNTS) for _ in range(4))
        return (a, b, c, d)

    def _source(self, near: Shape) -> Tensor | None:
        dice = self._dice
        if dice.random() < 0.05:
            return None
        ne = near if dice.random() < 0.6 else self._shape()
        if dice.random() < 0.3:
            ne = (ne[0], dice.choice(_COUNTS), 1, 1)
        if dice.random() < 0.1:
            ne = (ne[1], 1, 1, 1)
        return self._tensor(dice.choice(_TYPES), ne)

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
        if dice.random() < self._huge:
            at = dice.randrange(1, 4)
            ne = (*ne[:at], dice.choice(_HUGE), *ne[at + 1 :])  # type: ignore[assignment]
            nb[at] = 0
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
