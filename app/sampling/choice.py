"""The end of a chain: a token, and the candidates it was drawn from.

`Selector` is the last link. `Dist`, the usual one, draws from the softmax of what the filters left,
as llama_sampler_dist in llama.cpp's src/llama-sampler.cpp does: one draw of a double for each
token, also when only one candidate is left, and the first candidate at which the running sum of
weights reaches that share of the whole.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from app.sampling.candidates import F32, Candidates, weights
from app.sampling.errors import SamplingError
from app.sampling.rng import Mt19937

_BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token; `shares` (n,) over `total` are the probabilities of the candidates."""

    token: int
    candidates: Candidates
    shares: F32
    total: float

    @property
    def probability(self) -> float:
        """Probability of the chosen token among the candidates."""
        at = np.flatnonzero(self.candidates.token_ids() == self.token)
        return float(self.shares[at[0]]) / self.total if at.size else 0.0

    def top(self, n: int) -> list[tuple[int, float]]:
        """Return up to n (token, probability), most probable first, none of them zero."""
        ids, shares = self.candidates.token_ids(), self.shares
        if self.candidates.is_sorted:
            ids, shares = ids[:n], shares[:n]
        else:
            order = np.argsort(-shares, kind="stable")[:n]
            ids, shares = ids[order], shares[order]
        pairs = zip(ids.tolist(), (shares / np.float64(self.total)).tolist(), strict=True)
        return [(token, p) for token, p in pairs if p > 0]


class Selector(Protocol):
    """The link that chooses."""

    def select(self, c: Candidates) -> Choice:
        """Choose one of the candidates. Raises: SamplingError."""

    def accept(self, token: int) -> None:
        """Learn which token became part of the sequence."""

    def reset(self) -> None:
        """Forget everything and go back to the first random draw."""

    def clone(self) -> "Selector":
        """Return an independent copy of the selector and its state."""


def chosen(c: Candidates, index: int, shares: F32, total: float) -> Choice:
    """Return the choice of the candidate at this index."""
    token = index if c.ids is None else int(c.ids[index])
    return Choice(token, c, shares, total)


def pick(shares: F32, u: float) -> tuple[int, float]:
    """Return (first index at which the running sum reaches u of the whole, the whole).

    Sums are double. Over many shares they are taken block by block, which may differ from a plain
    running sum in the sixteenth digit. Raises: SamplingError when the whole is not positive and
    finite.
    """
    n_blocks = shares.size // _BLOCK
    blocks = np.add.reduce(
        shares[: n_blocks * _BLOCK].reshape(n_blocks, _BLOCK), axis=1, dtype=np.float64
    )
    before = np.concatenate([[0.0], np.cumsum(blocks)])
    tail = np.cumsum(shares[n_blocks * _BLOCK :], dtype=np.float64)
    whole = float(before[-1] + (tail[-1] if tail.size else 0.0))
    if not 0 < whole < np.inf:
        raise SamplingError(f"weights of {shares.size} candidates sum to {whole}; expected > 0")
    target = whole * u
    block = int(np.searchsorted(before[1:], target, side="left"))
    start = block * _BLOCK
    running = before[block] + np.cumsum(shares[start : start + _BLOCK], dtype=np.float64)
    index = start + int(np.searchsorted(running, target, side="left"))
    return min(index, shares.size - 1), whole


class Dist:
    """Draws from the softmax of the candidates."""

    __slots__ = ("_rng",)

    def __init__(self, rng: Mt19937) -> None:
        self._rng = rng

    def select(self, c: Candidates) -> Choice:
        shares = weights(c)
        index, total = pick(shares, self._rng.uniform())
        return chosen(c, index, shares, total)

    def accept(self, token: int) -> None:
        pass

    def reset(self) -> None:
        self._rng.reset()

    def clone(self) -> "Dist":
        return Dist(self._rng.clone())


class Greedy:
    """Takes the first best; what Dist gives when temperature zero masked everything else."""

    __slots__ = ()

    def select(self, c: Candidates) -> Choice:
        index = int(c.logits.argmax())
        best = c.take(np.array([index]), True)
        return chosen(best, 0, weights(best), 1.0)

    def accept(self, token: int) -> None:
        pass

    def reset(self) -> None:
        pass

    def clone(self) -> "Greedy":
        return self


def drawn(c: Candidates, probs: F32, rng: Mt19937) -> tuple[int, Choice]:
    """Draw as std::discrete_distribution does; return (index, choice)."""
    index = rng.discrete(probs)
    return index, chosen(c, index, probs, 1.0)
