"""Reads and writes the keys and values of one sequence, wherever the pool keeps them.

The engine thread owns it; nothing may be in flight on the stages meanwhile. A sequence's rows come
in the order of stages, layers, keys before values, each tensor's by position: what is read on one
placement can be written on another, as long as model and cache types are the same. Consecutive
cells go in one transfer, and all transfers of a tensor are asked for before the first is waited
for.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from app.engine.kv_cache import CellPool, KVCache
from app.engine.stage import Stage
from app.ggml.tensor import Tensor

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class HeldPositions:
    """Positions of a sequence that a cache holds, ascending; `window` is empty without such layers
    and may lack the oldest.
    """

    full: npt.NDArray[np.int32]
    window: npt.NDArray[np.int32]


class Run(NamedTuple):
    """Consecutive cells, of which the first holds row `row` of a sequence."""

    cell: int
    row: int
    n: int


class CacheTensor(NamedTuple):
    """Keys or values of one layer and the pool whose cells they lie in."""

    stage: Stage
    tensor: Tensor
    is_window: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of one cell."""
        return self.tensor.nbytes // self.tensor.ne[1]


class KVRows:
    """Rows of the sequences in a cache over these stages."""

    def __init__(self, stages: Sequence[Stage], cache: KVCache) -> None:
        self.cache = cache
        self.tensors = tuple(
            CacheTensor(stage, tensor, cache.window is not None and stage.model.hparams.is_swa[il])
            for stage in stages
            for il in stage.layers
            for tensor in stage.cache_of(il)
        )

    def held(self, seq: int) -> HeldPositions:
        """Return which positions of `seq` are there."""
        window = self.cache.window
        nothing = np.zeros(0, np.int32)
        return HeldPositions(
            self.cache.full.cells_of(seq)[1], window.cells_of(seq)[1] if window else nothing
        )

    def n_bytes(self, held: HeldPositions) -> int:
        """Return the size of the rows of a sequence with these positions."""
        return sum(
            t.row_bytes * len(held.window if t.is_window else held.full) for t in self.tensors
        )

    def read(self, seq: int) -> Iterator[bytes]:
        """Yield the rows of `seq`, one tensor at a time. Raises: DeviceLostError."""
        for item in self.tensors:
            cells = self._pool(item).cells_of(seq)[0]
            size = item.row_bytes
            asked = [
                item.stage.device.get_tensor(item.tensor, run.cell * size, run.n * size)
                for run in runs(cells)
            ]
            yield b"".join(future.result() for future in asked)

    def write(self, seq: int, held: HeldPositions, rows: Iterable[bytes]) -> None:
        """Give `seq`, which has none, cells for these positions and fill them.

        Raises: CellsExhaustedError, leaving everything as it was; DeviceLostError.
        """
        cells = self.cache.adopt(seq, held.full, held.window)
        for item, data in zip(self.tensors, rows, strict=True):
            size, view = item.row_bytes, memoryview(data)
            for run in runs(cells[item.is_window]):
                part = view[run.row * size : (run.row + run.n) * size]
                item.stage.device.set_tensor(item.tensor, part, run.cell * size)

    def _pool(self, item: CacheTensor) -> CellPool:
        window = self.cache.window
        return window if item.is_window and window is not None else self.cache.full


def runs(cells: I64) -> list[Run]:
    """Cut cells, in the order of their rows, into runs of consecutive ones."""
    if not len(cells):
        return []
    starts = [0, *(np.flatnonzero(np.diff(cells) != 1) + 1).tolist(), len(cells)]
    return [Run(int(cells[a]), a, b - a) for a, b in pairwise(starts)]
