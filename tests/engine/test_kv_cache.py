"""Cells of the KV cache: who holds what, who may see what."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.kv_cache import CellPool, CellsExhaustedError, KVCache, window_cells


def visible(pool: CellPool, seq: int, pos: int) -> int:
    """Cells that a token at `pos` of `seq` attends to."""
    mask = pool.mask(np.array([seq], np.int32), np.array([pos], np.int32), pool.n_kv())
    return int(mask.sum())


def test_a_token_sees_its_own_past_and_nothing_of_others() -> None:
    pool = CellPool(256)
    pool.take(0, range(5))
    pool.take(1, range(3))
    assert visible(pool, 0, 4) == 5
    assert visible(pool, 0, 2) == 3
    assert visible(pool, 1, 2) == 3


def test_a_window_token_sees_the_window() -> None:
    pool = CellPool(256, n_swa=4)
    pool.take(0, range(10))
    assert visible(pool, 0, 9) == 4
    assert visible(pool, 0, 2) == 3


def test_a_full_pool_refuses_and_stays_as_it_was() -> None:
    pool = CellPool(8)
    pool.take(0, range(6))
    with pytest.raises(CellsExhaustedError):
        pool.take(1, range(3))
    assert pool.n_free() == 2
    pool.check_integrity()


def test_a_window_pool_goes_on_for_ever() -> None:
    pool = CellPool(12, n_swa=4)
    for pos in range(0, 200, 4):
        pool.take(0, range(pos, pos + 4))
        assert visible(pool, 0, pos + 3) == 4
    pool.check_integrity()


def test_a_window_pool_makes_room_for_another_sequence() -> None:
    pool = CellPool(window_cells(4, 4, 2, 10_000), n_swa=4)
    n = pool.n_cells
    pool.take(0, range(n))
    pool.take(1, range(4))
    assert pool.holds(0, n)
    assert visible(pool, 0, n) == 3
    assert visible(pool, 1, 3) == 4


def test_a_prefix_is_reusable_only_while_its_window_is_there() -> None:
    cache = KVCache(256, 12, 4)
    cache.take(0, range(8))
    assert cache.reusable(0, 7) == 7
    cache.take(0, range(8, 12))
    cache.take(0, range(12, 16))
    assert cache.reusable(0, 16) == 16
    assert cache.reusable(0, 6) == 0


def test_n_kv_is_padded_and_bounded() -> None:
    pool = CellPool(300)
    assert pool.n_kv() == 256
    pool.take(0, range(257))
    assert pool.n_kv() == 300


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans()), max_size=40))
def test_integrity_holds_whatever_happens(steps: list[tuple[int, int, bool]]) -> None:
    cache = KVCache(64, 48, 5)
    lengths = [0, 0, 0, 0]
    for seq, n, drop in steps:
        if drop:
            lengths[seq] = min(lengths[seq], n)
            if cache.reusable(seq, lengths[seq]) < lengths[seq]:
                lengths[seq] = 0
            cache.truncate(seq, lengths[seq])
        elif cache.full.n_free() >= n:
            cache.take(seq, range(lengths[seq], lengths[seq] + n))
            lengths[seq] += n
        cache.check_integrity()
        assert [cache.full.n_used(s) for s in range(4)] == lengths
        assert all(cache.full.holds(s, lengths[s]) for s in range(4))
