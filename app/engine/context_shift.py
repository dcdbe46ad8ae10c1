"""Which tokens a sequence forgets when its context is full and it is to go on all the same.

The first `n_keep` tokens stay, the next `n_discard` go. llama.cpp turns the keys behind the gap to
their new positions; here the scheduler drops everything behind the kept tokens from the cache and
computes the rest again, as if it were a prompt. That costs time once per shift, and works alike on
every device, with every cache type, with sliding windows and on workers of any make, because it
asks for nothing but ordinary steps. How much is kept follows `pre_decode` of llama.cpp's server
(server-context.cpp, b11434).
"""

from typing import NamedTuple

MIN_ROOM = 4
"""Tokens of a context that are never kept, so that there is always something to forget."""


class Gap(NamedTuple):
    """Tokens `start` to `end`, the last not included, are forgotten."""

    start: int
    end: int


def gap(n_past: int, n_ctx: int, *, n_keep: int, n_discard: int) -> Gap:
    """Return what a full sequence of `n_past` cached tokens forgets: at least one of them.

    `n_keep` counts a BOS token; `n_discard` 0 means half of what is not kept.
    """
    start = max(0, min(n_keep, n_ctx - MIN_ROOM, n_past - 1))
    n_left = n_past - start
    wanted = n_discard or n_left // 2
    return Gap(start, start + max(1, min(wanted, n_left - 1)))
