"""DRY ("don't repeat yourself"): a penalty for the token that would prolong a repetition.

A stage of the chain. It looks for earlier places where the sequence went as its last tokens go now;
the token that followed there is penalised by multiplier * base ** (length - allowed length). A
sequence breaker ends what counts as a repetition. Follows llama_sampler_dry in llama.cpp's
src/llama-sampler.cpp.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.sampling.candidates import Candidates
from app.sampling.penalties import changed
from app.sampling.vocab import Breakers

_LOG_OF_F32_MAX: Final = np.float32(88.7228391)
_BASE_THAT_GROWS: Final = np.float32(1.000001)


@dataclass(frozen=True, slots=True)
class DryParams:
    """The numbers of the penalty; base at least 1, last_n at least 1."""

    multiplier: float
    base: float
    allowed_length: int
    last_n: int


def common_prefixes(tokens: Sequence[int]) -> list[int]:
    """Return for each index k how many tokens from k on equal those from 0 on (Z-algorithm)."""
    n = len(tokens)
    lengths = [0] * n
    left = right = 0
    for k in range(1, n):
        length = min(lengths[k - left], right - k) if k < right else 0
        while k + length < n and tokens[length] == tokens[k + length]:
            length += 1
        lengths[k] = length
        if k + length > right:
            left, right = k, k + length
    return lengths


def repetition_limit(recent: Sequence[int], breakers: Breakers) -> int:
    """Return how many tokens came after the latest breaker; `recent` is newest first."""
    for i, token in enumerate(recent):
        matched = [
            len(tail)
            for tail in breakers.get(token, ())
            if len(tail) <= i and all(recent[i - 1 - j] == t for j, t in enumerate(tail))
        ]
        if matched:
            return i - max(matched)
    return len(recent)


def repetitions(recent: Sequence[int], limit: int, allowed: int) -> dict[int, int]:
    """Return token → longest repetition that it would prolong; `recent` is newest first."""
    longest: dict[int, int] = {}
    for k, length in enumerate(common_prefixes(recent)):
        length = min(length, limit)
        if k > 0 and length >= allowed:
            token = recent[k - 1]
            longest[token] = max(longest.get(token, 0), length)
    return longest


class Dry:
    """The stage: remembers the last tokens."""

    __slots__ = ("_breakers", "_max_exponent", "_params", "_window")

    def __init__(self, params: DryParams, breakers: Breakers) -> None:
        self._params = params
        self._breakers = breakers
        self._window: deque[int] = deque(maxlen=params.last_n)
        base = np.float32(params.base)
        grows = base > _BASE_THAT_GROWS
        self._max_exponent = int(_LOG_OF_F32_MAX / np.log(base)) if grows else 0

    def apply(self, c: Candidates) -> Candidates:
        allowed = self._params.allowed_length
        if len(self._window) <= allowed:
            return c
        recent = list(self._window)[::-1]
        limit = repetition_limit(recent, self._breakers)
        if limit < allowed:
            return c
        longest = {
            token: length
            for token, length in repetitions(recent, limit, allowed).items()
            if () not in self._breakers.get(token, ())
        }
        tokens = np.fromiter(longest.keys(), dtype=np.int64, count=len(longest))
        penalty = np.array([self._penalty(n) for n in longest.values()], dtype=np.float32)
        positions, which = c.locate(tokens)
        return changed(c, positions, c.logits[positions] - penalty[which], False)

    def _penalty(self, length: int) -> np.float32:
        exponent = length - self._params.allowed_length
        if self._max_exponent > 0:
            exponent = min(exponent, self._max_exponent)
        growth = np.power(np.float64(np.float32(self._params.base)), exponent)
        return np.float32(np.float64(np.float32(self._params.multiplier)) * growth)

    def accept(self, tokens: Sequence[int]) -> None:
        self._window.extend(tokens)

    def reset(self) -> None:
        self._window.clear()

    def clone(self) -> "Dry":
        copy = Dry(self._params, self._breakers)
        copy._window.extend(self._window)
        return copy
