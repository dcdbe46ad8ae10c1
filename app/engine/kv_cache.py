"""Which sequence and position each cell of a KV cache holds.

A cache is a pool of cells shared by all sequences; a cell holds one token of one sequence:

    cell      0    1    2    3    4  ...  128  129  130
    seq       0    0    0   -1   -1  ...    1    1   -1      -1: free
    pos       0    1    2    -    -  ...    0    1    -

A sequence takes whole pages as long as there are any, and single cells then: what it attends to
lies in the order of its positions, and no token is refused while a cell is free.
The engine thread owns it. Nothing here touches a device: the tables say where keys and values of a
token are written, and the mask made from them says who may attend to whom. Layers with a sliding
window have a pool of their own, from which cells that no later token can see are taken back only
when room is needed, so that a short step back stays possible.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from app.errors import LlamaServeError

FREE = -1
KV_PADDING = 256
PAGE = 128
"""Cells that a sequence takes at a time: as many as a tile of keys has in the native attention, so
that a sequence finds the same tiles wherever it lies (csrc/attention*.cpp)."""

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


class CellsExhaustedError(LlamaServeError):
    """No free cell is left for a token."""


class CellPool:
    """The cells of the full-attention layers (`n_swa` 0) or of the window layers."""

    def __init__(self, n_cells: int, n_swa: int = 0, *, causal: bool = True) -> None:
        self.n_cells = n_cells
        self.n_swa = n_swa
        self.causal = causal
        self._seq: I32 = np.full(n_cells, FREE, np.int32)
        self._pos: I32 = np.full(n_cells, FREE, np.int32)
        # Kept so that a token more does not cost a look at every cell.
        self._n_free = n_cells
        self._end = 0
        """One behind the last used cell."""
        self._next: dict[int, int] = {}
        """The cell behind the newest token of each sequence."""
        self._n_used_of_page = np.zeros(n_cells // PAGE, np.int32)

    def n_free(self) -> int:
        """Number of free cells."""
        return self._n_free

    def n_used(self, seq: int) -> int:
        """Number of cells that hold `seq`."""
        return int(np.count_nonzero(self._seq == seq))

    def cells_of(self, seq: int) -> tuple[I64, I32]:
        """Cells and positions of `seq`, in the order of positions."""
        cells = np.flatnonzero(self._seq == seq)
        order = np.argsort(self._pos[cells])
        return cells[order], self._pos[cells[order]]

    def take(self, seq: int, positions: Sequence[int]) -> I64:
        """Give a cell to each of `positions` of `seq`: the rest of its page, then whole pages, and
        single cells when no page is free.

        Raises: CellsExhaustedError, leaving everything as it was.
        """
        n = len(positions)
        if self.n_swa and self._n_free < n:
            self._forget_unseen()
        if self._n_free < n:
            raise CellsExhaustedError(
                f"KV cache of {self.n_cells} cells: {n} needed, {self._n_free} free"
            )
        if not n:
            return np.zeros(0, np.int64)
        cells = self._choose(seq, n)
        self._seq[cells] = seq
        self._pos[cells] = positions
        self._n_free -= n
        self._next[seq] = int(cells[-1]) + 1
        self._end = max(self._end, int(cells.max()) + 1)
        self._count(cells, 1)
        return cells

    def _choose(self, seq: int, n: int) -> I64:
        start = self._next.get(seq, 0)
        rest = np.arange(start, min(start + min(-start % PAGE, n), self.n_cells))
        found: I64 = rest[self._seq[rest] == FREE]
        if len(found) == n:
            return found
        pages = np.flatnonzero(self._n_used_of_page == 0)
        # Pages behind the newest token first: keys that lie in their order are summed up in it.
        pages = np.concatenate([pages[pages * PAGE >= start], pages[pages * PAGE < start]])
        pages = pages[: -(-(n - len(found)) // PAGE)]
        found = np.concatenate([found, (pages[:, None] * PAGE + np.arange(PAGE)).ravel()])
        if len(found) < n:
            others = self._seq == FREE
            others[found] = False
            found = np.concatenate([found, np.flatnonzero(others)])
        return found[:n]

    def _count(self, cells: I64, change: int) -> None:
        """Keep account of cells that were taken (1) or freed (-1)."""
        pages = cells // PAGE
        np.add.at(self._n_used_of_page, pages[pages < len(self._n_used_of_page)], change)

    def truncate(self, seq: int, n_keep: int) -> None:
        """Free the cells of `seq` at positions `n_keep` and above."""
        mine = self._seq == seq
        self._release(mine & (self._pos >= n_keep))
        kept = np.flatnonzero(mine & (self._seq == seq))
        if len(kept):
            self._next[seq] = int(kept[self._pos[kept].argmax()]) + 1
        else:
            self._next.pop(seq, None)

    def holds(self, seq: int, n_past: int) -> bool:
        """Whether everything is there that a token at position `n_past` of `seq` attends to."""
        first = max(0, n_past - self.n_swa + 1) if self.n_swa else 0
        seen = (self._seq == seq) & (self._pos >= first) & (self._pos < n_past)
        return int(np.count_nonzero(seen)) == n_past - first

    def n_kv(self) -> int:
        """Cells that attention has to look at: up to the last used one, padded."""
        last = max(self._end, 1)
        return min(self.n_cells, -(-last // KV_PADDING) * KV_PADDING)

    def mask(self, seqs: I32, positions: I32, n_kv: int) -> npt.NDArray[np.bool_]:
        """Whether token i may attend to cell j (n_tokens, n_kv)."""
        cell_pos = self._pos[:n_kv]
        allowed: npt.NDArray[np.bool_] = self._seq[:n_kv] == seqs[:, None]
        if self.causal:
            allowed &= cell_pos <= positions[:, None]
        if self.n_swa:
            allowed &= cell_pos > positions[:, None] - self.n_swa
        return allowed

    def check_integrity(self) -> None:
        """Assert that no position of a sequence is held twice, that free cells hold nothing, and
        that the kept numbers are right.
        """
        free = self._seq == FREE
        used = np.flatnonzero(~free)
        assert self._n_free == int(np.count_nonzero(free)), "free cells are miscounted"
        assert self._end == (int(used[-1]) + 1 if len(used) else 0), "the last used cell is another"
        pages = (~free)[: len(self._n_used_of_page) * PAGE].reshape(-1, PAGE)
        assert bool(np.all(pages.sum(axis=1) == self._n_used_of_page)), "pages are miscounted"
        assert bool(np.all(self._pos[free] == FREE)), "a free cell has a position"
        held = np.stack([self._seq[~free], self._pos[~free]])
        assert len(np.unique(held, axis=1).T) == held.shape[1], "a position is held twice"

    def _forget_unseen(self) -> None:
        """Free what no later token of any sequence can attend to."""
        for seq in np.unique(self._seq[self._seq != FREE]):
            mine = self._seq == seq
            next_pos = int(self._pos[mine].max()) + 1
            self._release(mine & (self._pos <= next_pos - self.n_swa))

    def _release(self, cells: npt.NDArray[np.bool_]) -> None:
        released = np.flatnonzero(cells)
        if not len(released):
            return
        self._seq[released] = FREE
        self._pos[released] = FREE
        self._n_free += len(released)
        self._count(released, -1)
        used = np.flatnonzero(self._seq != FREE)
        self._end = int(used[-1]) + 1 if len(used) else 0


class KVCache:
    """Both pools of a model; a sequence lives in both or in neither."""

    def __init__(
        self, n_cells: int, n_cells_window: int, n_swa: int, *, causal: bool = True
    ) -> None:
        self.full = CellPool(n_cells, causal=causal)
        self.window = CellPool(n_cells_window, n_swa) if n_cells_window else None

    def take(self, seq: int, positions: Sequence[int]) -> tuple[I64, I64 | None]:
        """Cells of `positions` in the full and in the window pool.

        Raises: CellsExhaustedError, leaving everything as it was.
        """
        cells = self.full.take(seq, positions)
        if self.window is None:
            return cells, None
        try:
            return cells, self.window.take(seq, positions)
        except CellsExhaustedError:
            self.full.truncate(seq, min(positions))
            raise

    def adopt(self, seq: int, positions: I32, in_window: I32) -> tuple[I64, I64]:
        """Cells of a sequence that comes from elsewhere, in the full and in the window pool.

        Raises: CellsExhaustedError, leaving everything as it was.
        """
        cells = self.full.take(seq, positions.tolist())
        if self.window is None:
            return cells, cells[:0]
        try:
            return cells, self.window.take(seq, in_window.tolist())
        except CellsExhaustedError:
            self.full.truncate(seq, 0)
            raise

    def truncate(self, seq: int, n_keep: int) -> None:
        """Forget `seq` from position `n_keep` on."""
        for pool in self._pools():
            pool.truncate(seq, n_keep)

    def reusable(self, seq: int, n_past: int) -> int:
        """How many of the first `n_past` tokens of `seq` can be kept.

        All of them, or none when a window has moved on.
        """
        return n_past if all(pool.holds(seq, n_past) for pool in self._pools()) else 0

    def check_integrity(self) -> None:
        """Assert the invariants of both pools."""
        for pool in self._pools():
            pool.check_integrity()

    def _pools(self) -> list[CellPool]:
        return [self.full] if self.window is None else [self.full, self.window]


def window_cells(n_swa: int, n_ubatch: int, n_parallel: int, n_cells: int) -> int:
    """Cells of the window pool: each sequence's window and micro-batch, never more than the full
    pool.

    Follows the sizing of llama.cpp's window cache (llama-kv-cache-iswa.cpp, b11434).
    """
    if not n_swa:
        return 0
    wanted = n_parallel * (n_swa + n_ubatch)
    return min(n_cells, -(-wanted // KV_PADDING) * KV_PADDING)
