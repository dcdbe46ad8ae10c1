"""Cells of a sequence as transfers."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.engine.kv_rows import runs


@given(st.lists(st.integers(0, 40), unique=True))
def test_runs_name_every_row_once_and_never_join_what_is_apart(cells: list[int]) -> None:
    found = runs(np.array(cells, np.int64))
    assert [run.cell + i for run in found for i in range(run.n)] == cells
    assert [run.row for run in found] == [sum(r.n for r in found[:k]) for k in range(len(found))]
    for before, after in pairwise(found):
        assert after.cell != before.cell + before.n
