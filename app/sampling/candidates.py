"""The tokens that are still in the race, and the arithmetic that all samplers share.

Every filter takes Candidates and returns Candidates; nothing is changed in place, so the caller's
logits stay as they were. Order matters: a draw walks the candidates in the order that they have, so
who sorts and who does not follows llama.cpp (src/llama-sampler.cpp). Arithmetic is float32, sums of
float32 go from left to right as in C++; equal logits are ordered by token id.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from app.sampling.errors import SamplingError

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_EXP_BLOCK: Final = 8192
_SMALL: Final = 64
_GROUP: Final = 64
_LARGE_PART: Final = 8


@dataclass(frozen=True, slots=True)
class Candidates:
    """`logits` is (n,); `ids` is (n,) or None when token i is at index i."""

    logits: F32
    ids: Ids | None = None
    is_sorted: bool = False

    @property
    def size(self) -> int:
        """Number of candidates."""
        return self.logits.size

    def token_ids(self) -> Ids:
        """Return the token of each candidate."""
        return np.arange(self.logits.size) if self.ids is None else self.ids

    def take(self, index: Ids, is_sorted: bool) -> "Candidates":
        """Return the candidates at these indices, in this order."""
        ids = index if self.ids is None else self.ids[index]
        return Candidates(self.logits[index], ids, is_sorted)

    def head(self, n: int) -> "Candidates":
        """Return the first n."""
        return self if n >= self.size else self.span(0, n)

    def span(self, start: int, stop: int) -> "Candidates":
        """Return the candidates from start to before stop."""
        return Candidates(self.logits[start:stop], self.token_ids()[start:stop], self.is_sorted)

    def with_logits(self, logits: F32, is_sorted: bool) -> "Candidates":
        """Return the same tokens with other logits."""
        return Candidates(logits, self.ids, is_sorted)

    def sort(self, n: int | None = None) -> "Candidates":
        """Return the n best, best first; all of them by default."""
        n = self.size if n is None else min(n, self.size)
        return self.head(n) if self.is_sorted else self.take(top_order(self.logits, n), True)

    def top_logit(self) -> np.float32:
        """Return the largest logit."""
        return np.float32(self.logits[0] if self.is_sorted else self.logits.max())

    def locate(self, tokens: Ids) -> tuple[Ids, Ids]:
        """Return (positions, which): candidate positions[i] is token tokens[which[i]]."""
        if self.ids is None:
            which = np.flatnonzero((tokens >= 0) & (tokens < self.size))
            return tokens[which], which
        by_id = np.argsort(self.ids, kind="stable")
        slot = np.searchsorted(self.ids, tokens, sorter=by_id)
        position = by_id[np.minimum(slot, self.size - 1)]
        which = np.flatnonzero(self.ids[position] == tokens)
        return position[which], which


def _sort_all(values: F32) -> Ids:
    if values.size <= _SMALL:
        return np.argsort(-values, kind="stable")
    # The bits of a float order like an integer once the negative half is turned around; with the
    # index in the low half, one integer sort gives the order and breaks ties. + 0.0 drops -0.0.
    bits = (values + np.float32(0.0)).view(np.int32)
    ascending = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    keys = (~ascending).astype(np.int64) << 32 | np.arange(values.size)
    keys.sort()
    return keys & 0xFFFFFFFF


def top_order(values: F32, n: int) -> Ids:
    """Return the indices of the n largest values, largest first, equal ones by index.

    Unless n is a large part of them, only the values that reach a bound are sorted, which at least
    n do.
    """
    if _LARGE_PART * n > values.size:
        return _sort_all(values)[:n]
    bound = _bound(values, n)
    if bound == -np.inf:
        alive = np.flatnonzero(values > bound)
        order = alive[_sort_all(values[alive])]
        return np.concatenate([order, np.flatnonzero(values == bound)[:n]])[:n]
    reached = np.flatnonzero(values >= bound)
    return reached[_sort_all(values[reached])[:n]]


def _bound(values: F32, n: int) -> np.float32:
    """Return the n-th largest value, or for a small n the n-th largest maximum of interleaved
    groups: it is lower, but found in a fraction of the time.
    """
    width = values.size // _GROUP
    if 4 * n > width:
        return np.float32(np.partition(values, values.size - n)[values.size - n])
    maxima = values[: width * _GROUP].reshape(_GROUP, width).max(axis=0)
    return np.float32(np.partition(maxima, width - n)[width - n])


def exp_f32(values: F32) -> F32:
    """Return e**x rounded as the C library's expf rounds it, which NumPy's float32 exp does not."""
    if values.size <= _EXP_BLOCK:
        return np.exp(values.astype(np.float64)).astype(np.float32)
    out = np.empty_like(values)
    for i in range(0, values.size, _EXP_BLOCK):
        out[i : i + _EXP_BLOCK] = np.exp(values[i : i + _EXP_BLOCK].astype(np.float64))
    return out


def log_f32(value: F32) -> F32:
    """Return the natural logarithm, rounded as the C library's logf rounds it."""
    return np.log(value.astype(np.float64)).astype(np.float32)


def sum_f32(values: F32) -> np.float32:
    """Return the sum from left to right, rounded to float32 at each step."""
    return np.float32(np.add.accumulate(values)[-1])


def weights(c: Candidates) -> F32:
    """Return e**(logit - largest logit) for each candidate.

    Infinite logits share everything. Raises: SamplingError when nothing can be chosen.
    """
    top = c.top_logit()
    if np.isfinite(top):
        return exp_f32(c.logits - top)
    if top == np.inf:
        infinite: F32 = (c.logits == top).astype(np.float32)
        return infinite
    reason = "NaN" if np.isnan(top) else "all -inf"
    raise SamplingError(f"logits of {c.size} candidates are {reason}; expected a finite maximum")


def softmax(c: Candidates) -> F32:
    """Return the probabilities, in the order of the candidates. Raises: SamplingError."""
    shares = weights(c)
    total = sum_f32(shares)
    probs: F32 = shares / total
    return probs
