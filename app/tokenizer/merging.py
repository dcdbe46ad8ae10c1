"""The merge loop that byte-pair and SentencePiece tokenizers share.

Neighbouring symbols are joined, the pair with the lowest rank first and the leftmost of equals
first, until no pair has a rank: what llama.cpp's two work queues do (src/llama-vocab.cpp,
`llm_tokenizer_spm_session`, `llm_tokenizer_bpe_session`). Words are short, so a scan over a list is
fastest; long runs without a place to cut go through a heap, which keeps them near-linear.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Final

NO_RANK: Final = float("inf")

# A scan costs n per merge, a heap log n with a larger constant: they cross at about this length.
_SCAN_LIMIT: Final = 48

RankOf = Callable[[str, str], float]
"""The rank of a pair of neighbours, NO_RANK when they must not be joined."""


def merge(symbols: list[str], rank_of: RankOf) -> list[str]:
    """Return the symbols after all merges; the list given may be changed."""
    if len(symbols) <= _SCAN_LIMIT:
        return _merge_by_scan(symbols, rank_of)
    return _merge_by_heap(symbols, rank_of)


def _merge_by_scan(symbols: list[str], rank_of: RankOf) -> list[str]:
    ranks = [rank_of(a, b) for a, b in pairwise(symbols)]
    while ranks:
        lowest = min(ranks)
        if lowest == NO_RANK:
            break
        i = ranks.index(lowest)
        symbols[i] += symbols.pop(i + 1)
        del ranks[i]
        if i:
            ranks[i - 1] = rank_of(symbols[i - 1], symbols[i])
        if i < len(ranks):
            ranks[i] = rank_of(symbols[i], symbols[i + 1])
    return symbols


def _merge_by_heap(symbols: list[str], rank_of: RankOf) -> list[str]:
    # A symbol that was merged away is ""; `after` and `before` link the living ones.
    n = len(symbols)
    after, before = list(range(1, n + 1)), list(range(-1, n - 1))
    heap: list[tuple[float, int, int, str]] = []
    for i in range(n - 1):
        rank = rank_of(symbols[i], symbols[i + 1])
        if rank != NO_RANK:
            heap.append((rank, i, i + 1, symbols[i] + symbols[i + 1]))
    heapify(heap)
    while heap:
        _, i, j, joined = heappop(heap)
        if not symbols[i] or not symbols[j] or symbols[i] + symbols[j] != joined:
            continue
        symbols[i], symbols[j] = joined, ""
        after[i] = after[j]
        if after[i] < n:
            before[after[i]] = i
        for a, b in ((before[i], i), (i, after[i])):
            if a >= 0 and b < n:
                rank = rank_of(symbols[a], symbols[b])
                if rank != NO_RANK:
                    heappush(heap, (rank, a, b, symbols[a] + symbols[b]))
    return [symbol for symbol in symbols if symbol]
