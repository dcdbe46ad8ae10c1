"""Ranges of bytes, against a look at every byte."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.devices.spans import Range, merged, touches

RANGES = st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda r: (r[0], r[0] + r[1]))


def covered(ranges: list[Range]) -> set[int]:
    return {byte for start, end in ranges for byte in range(start, end)}


@given(st.lists(RANGES), RANGES)
def test_joined_ranges_have_the_same_bytes(ranges: list[Range], asked: Range) -> None:
    joined = merged(ranges)
    assert covered(joined) == covered(ranges)
    assert all(a[1] < b[0] for a, b in pairwise(joined))
    assert touches(joined, *asked) == bool(covered(ranges) & covered([asked]))
