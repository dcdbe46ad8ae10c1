"""What a link of the chain is: it changes candidates and may remember accepted tokens.

The chain (chain.py) runs stages in order, tells each the accepted tokens, and clones them for a
second sequence. A stage belongs to one sequence and is used by one thread at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.sampling.candidates import Candidates
from app.sampling.filters import xtc
from app.sampling.rng import Mt19937


class Stage(Protocol):
    """One link that does not choose."""

    def apply(self, c: Candidates) -> Candidates:
        """Return the candidates that go on."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Remember tokens that became part of the sequence, oldest first."""

    def reset(self) -> None:
        """Forget every token and go back to the first random draw."""

    def clone(self) -> "Stage":
        """Return an independent copy of the stage and its state."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A stage without a state."""

    function: Callable[[Candidates], Candidates]

    def apply(self, c: Candidates) -> Candidates:
        return self.function(c)

    def accept(self, tokens: Sequence[int]) -> None:
        pass

    def reset(self) -> None:
        pass

    def clone(self) -> "Filter":
        return self


class Xtc:
    """The one filter that draws: XTC with its own random numbers."""

    __slots__ = ("_min_keep", "_probability", "_rng", "_threshold")

    def __init__(self, probability: float, threshold: float, min_keep: int, rng: Mt19937) -> None:
        self._probability = probability
        self._threshold = threshold
        self._min_keep = min_keep
        self._rng = rng

    def apply(self, c: Candidates) -> Candidates:
        return xtc(c, self._probability, self._threshold, self._min_keep, self._rng)

    def accept(self, tokens: Sequence[int]) -> None:
        pass

    def reset(self) -> None:
        self._rng.reset()

    def clone(self) -> "Xtc":
        return Xtc(self._probability, self._threshold, self._min_keep, self._rng.clone())
