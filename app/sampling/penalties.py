"""Logit bias, and penalties for tokens of the recent past.

Stages at the head of the chain. They touch the logits of the tokens that they know and copy the
rest; the penalties leave the candidates marked as unsorted. A logit that would become NaN (two
opposite infinities) is masked. Follows llama_sampler_logit_bias and llama_sampler_penalties in
llama.cpp's src/llama-sampler.cpp.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from app.sampling.candidates import F32, Candidates, Ids


def changed(c: Candidates, positions: Ids, values: F32, is_sorted: bool) -> Candidates:
    """Return candidates whose logits at these positions are replaced; NaN becomes -inf."""
    logits = c.logits.copy()
    logits[positions] = np.where(np.isnan(values), np.float32(-np.inf), values)
    return c.with_logits(logits, is_sorted)


class LogitBias:
    """Adds a constant to the logits of some tokens; several for one token are added in turn."""

    __slots__ = ("_biases", "_tokens")

    def __init__(self, tokens: Sequence[int], biases: Sequence[float]) -> None:
        self._tokens = np.array(tokens, dtype=np.int64)
        self._biases = np.array(biases, dtype=np.float32)

    def apply(self, c: Candidates) -> Candidates:
        positions, which = c.locate(self._tokens)
        logits = c.logits.copy()
        np.add.at(logits, positions, self._biases[which])
        return changed(c, positions, logits[positions], c.is_sorted)

    def accept(self, tokens: Sequence[int]) -> None:
        pass

    def reset(self) -> None:
        pass

    def clone(self) -> "LogitBias":
        return self


class Penalties:
    """Repetition, frequency and presence penalties over the last `last_n` tokens."""

    __slots__ = ("_counts", "_frequency", "_last_n", "_presence", "_repeat", "_window")

    def __init__(self, last_n: int, repeat: float, frequency: float, presence: float) -> None:
        """`last_n` is at least 1, `repeat` positive and finite."""
        self._last_n = last_n
        self._repeat = np.float32(repeat)
        self._frequency = np.float32(frequency)
        self._presence = np.float32(presence)
        self._window: deque[int] = deque(maxlen=last_n)
        self._counts: dict[int, int] = {}

    def apply(self, c: Candidates) -> Candidates:
        n = len(self._counts)
        tokens = np.fromiter(self._counts.keys(), dtype=np.int64, count=n)
        counts = np.fromiter(self._counts.values(), dtype=np.float32, count=n)
        positions, which = c.locate(tokens)
        old = c.logits[positions]
        new = np.where(old <= 0, old * self._repeat, old / self._repeat)
        new -= counts[which] * self._frequency + self._presence
        return changed(c, positions, new, False)

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens[-self._last_n :]:
            if len(self._window) == self._last_n:
                self._forget(self._window[0])
            self._window.append(token)
            self._counts[token] = self._counts.get(token, 0) + 1

    def _forget(self, token: int) -> None:
        self._counts[token] -= 1
        if not self._counts[token]:
            del self._counts[token]

    def reset(self) -> None:
        self._window.clear()
        self._counts.clear()

    def clone(self) -> "Penalties":
        copy = Penalties(
            self._last_n, float(self._repeat), float(self._frequency), float(self._presence)
        )
        copy._window.extend(self._window)
        copy._counts.update(self._counts)
        return copy
