"""Log-probabilities of tokens: of the model's own distribution, or of what the chain left.

The engine makes one TokenLogprobs for each token of a request that asks for them; the HTTP room
writes it as `logprob`/`top_logprobs`, or as `prob`/`top_probs` for `post_sampling_probs`.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.sampling.candidates import F32, top_order
from app.sampling.choice import Choice
from app.sampling.errors import SamplingError

IMPOSSIBLE: Final = float(np.finfo(np.float32).min)
"""Stands for the logarithm of zero, which JSON cannot hold."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability, never above 0 nor infinite."""

    token: int
    logprob: float

    @property
    def prob(self) -> float:
        """The probability."""
        return math.exp(self.logprob)


@dataclass(frozen=True, slots=True)
class TokenLogprobs(TokenLogprob):
    """A chosen token, and the most probable ones in its place, best first."""

    top: tuple[TokenLogprob, ...] = ()


def raw_logprobs(logits: F32, token: int, n_top: int) -> TokenLogprobs:
    """Return the log-softmax of the model's logits (n_vocab,) for a token and for the n_top best.

    Neither logit bias nor any sampler counts. Raises: SamplingError for NaN or all -inf.
    """
    values = np.asarray(logits, dtype=np.float32)
    top = float(values.max())
    if not math.isfinite(top):
        raise SamplingError(f"largest of {values.size} logits is {top}; expected a finite number")
    with np.errstate(all="ignore"):
        log_sum = top + math.log(float(np.exp(values - np.float32(top)).sum(dtype=np.float64)))
    best = top_order(values, min(n_top, values.size)) if n_top > 0 else np.empty(0, dtype=np.int64)
    logs = (values[best].astype(np.float64) - log_sum).tolist()
    return TokenLogprobs(
        token,
        _bounded(float(values[token]) - log_sum),
        tuple(TokenLogprob(t, _bounded(x)) for t, x in zip(best.tolist(), logs, strict=True)),
    )


def chain_logprobs(choice: Choice, n_top: int) -> TokenLogprobs:
    """Return the probabilities after the chain: the chosen token and up to n_top candidates.

    Fewer than n_top are returned when the chain left fewer with a probability above zero.
    """
    top = tuple(TokenLogprob(t, _log(p)) for t, p in choice.top(n_top))
    return TokenLogprobs(choice.token, _log(choice.probability), top)


def _log(p: float) -> float:
    return _bounded(math.log(p)) if p > 0 else IMPOSSIBLE


def _bounded(logprob: float) -> float:
    return min(max(logprob, IMPOSSIBLE), 0.0)
