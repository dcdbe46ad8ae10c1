"""Mirostat 1 and 2: selectors that steer the surprise of the text towards a target.

They end a chain that has only a temperature before them. Each keeps mu, the largest surprise that
it lets through, and corrects it after each draw. Follow llama_sampler_mirostat and
llama_sampler_mirostat_v2 in llama.cpp's src/llama-sampler.cpp, down to what an overflow of the
number of candidates does there (one candidate is left).
"""

from typing import Final

import numpy as np

from app.sampling.candidates import F32, Candidates, log_f32, softmax, sum_f32
from app.sampling.choice import Choice, drawn
from app.sampling.rng import Mt19937

_M: Final = 100
"""How many of the best candidates estimate the steepness of the distribution."""

_INT32_MAX: Final = 2**31


class _Mirostat:
    """What both versions share: mu and its correction."""

    __slots__ = ("_eta", "_mu", "_rng", "_tau")

    def __init__(self, tau: float, eta: float, rng: Mt19937) -> None:
        self._tau = np.float32(tau)
        self._eta = np.float32(eta)
        self._mu = np.float32(2) * self._tau
        self._rng = rng

    def _draw(self, c: Candidates) -> Choice:
        probs = softmax(c)
        index, choice = drawn(c, probs, self._rng)
        self._mu -= self._eta * (surprise(probs[index : index + 1])[0] - self._tau)
        return choice

    def accept(self, token: int) -> None:
        pass

    def reset(self) -> None:
        self._mu = np.float32(2) * self._tau
        self._rng.reset()


def surprise(probs: F32) -> F32:
    """Return -log2 of probabilities."""
    return -np.log2(probs.astype(np.float64)).astype(np.float32)


def n_candidates(probs: F32, mu: np.float32, n_vocab: int) -> int:
    """Return how many of the candidates, whose probabilities fall, keep the surprise at mu."""
    best = probs[:_M]
    rank = np.arange(1, best.size, dtype=np.float32)
    t = log_f32((rank + np.float32(1)) / rank)
    b = log_f32(best[:-1] / best[1:])
    s = sum_f32(t * b) / sum_f32(t * t) if t.size else np.float32(np.nan)
    epsilon = s - np.float32(1)
    reach = epsilon * _power(2, mu) / (np.float32(1) - _power(n_vocab, -epsilon))
    k = _power(reach, np.float32(1) / s)
    return max(int(k), 1) if abs(k) < _INT32_MAX else 1


def _power(base: float | np.float32, exponent: np.float32) -> np.float32:
    return np.float32(np.power(np.float64(np.float32(base)), np.float64(exponent)))


class MirostatV1(_Mirostat):
    """Version 1: estimates the number of candidates from a Zipf law."""

    __slots__ = ("_n_vocab",)

    def __init__(self, tau: float, eta: float, rng: Mt19937, n_vocab: int) -> None:
        super().__init__(tau, eta, rng)
        self._n_vocab = n_vocab

    def select(self, c: Candidates) -> Choice:
        c = c.sort()
        return self._draw(c.head(n_candidates(softmax(c), self._mu, self._n_vocab)))

    def clone(self) -> "MirostatV1":
        copy = MirostatV1(float(self._tau), float(self._eta), self._rng.clone(), self._n_vocab)
        copy._mu = self._mu
        return copy


class MirostatV2(_Mirostat):
    """Version 2: drops every candidate whose surprise is above mu."""

    __slots__ = ()

    def select(self, c: Candidates) -> Choice:
        c = c.sort()
        above = surprise(softmax(c)) > self._mu
        n = int(np.argmax(above)) if above.any() else c.size
        return self._draw(c.head(max(n, 1)))

    def clone(self) -> "MirostatV2":
        copy = MirostatV2(float(self._tau), float(self._eta), self._rng.clone())
        copy._mu = self._mu
        return copy
