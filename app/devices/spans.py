"""Ranges of bytes [start, end): joined, and asked whether one has bytes of another.

Both compilers ask it for every tensor of a graph, however many a client's graph may have, so that a
question costs a search among the ranges and not a look at each.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

Range = tuple[int, int]


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Join ranges that touch one another; what comes back is in order and apart."""
    joined: list[Range] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def touches(joined: Sequence[Range], start: int, end: int) -> bool:
    """Whether one of `joined`, which `merged` has made, has bytes of [start, end)."""
    n_before = bisect_left(joined, (end,))
    return n_before > 0 and start < joined[n_before - 1][1]
