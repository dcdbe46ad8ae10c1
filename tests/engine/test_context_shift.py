"""What a full context forgets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.context_shift import MIN_ROOM, Gap, gap


@pytest.mark.parametrize(
    ("n_keep", "n_discard", "expected"),
    [
        (0, 0, Gap(0, 127)),
        (1, 0, Gap(1, 128)),
        (10, 5, Gap(10, 15)),
        (10, 1000, Gap(10, 254)),
        (1000, 0, Gap(252, 253)),
    ],
)
def test_half_of_what_is_not_kept_goes_unless_told_otherwise(
    n_keep: int, n_discard: int, expected: Gap
) -> None:
    assert gap(255, 256, n_keep=n_keep, n_discard=n_discard) == expected


@given(
    n_past=st.integers(1, 600),
    n_ctx=st.integers(1, 601),
    n_keep=st.integers(0, 2**31),
    n_discard=st.integers(0, 2**31),
)
def test_something_always_goes_and_something_stays(
    n_past: int, n_ctx: int, n_keep: int, n_discard: int
) -> None:
    start, end = gap(n_past, n_ctx, n_keep=n_keep, n_discard=n_discard)
    assert 0 <= start < end <= n_past
    assert start <= max(0, n_ctx - MIN_ROOM)
    assert end - start <= max(1, n_discard or n_past)
