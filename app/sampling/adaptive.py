"""Adaptive-p: a selector that prefers tokens near a target probability.

It ends the chain when `samplers` names it. The target is corrected by a moving average of the
probabilities that the accepted tokens had. Follows llama_sampler_adaptive_p in llama.cpp's
src/llama-sampler.cpp.
"""

from typing import Final

import numpy as np

from app.sampling.candidates import Candidates, softmax
from app.sampling.choice import Choice, drawn
from app.sampling.rng import Mt19937

_INVERSE_WIDTH: Final = np.float32(1) / np.float32(0.3)
_PEAK: Final = np.float32(5)
_SHARPNESS: Final = np.float32(10)
_MAX_DECAY: Final = 0.99
_ONE: Final = np.float32(1)


class AdaptiveP:
    """Draws near the target; a negative target only draws."""

    __slots__ = ("_decay", "_pending", "_rng", "_target", "_weight", "_weighted")

    def __init__(self, target: float, decay: float, rng: Mt19937) -> None:
        self._target = np.float32(target)
        self._decay = np.float32(min(max(decay, 0.0), _MAX_DECAY))
        self._rng = rng
        self._forget()

    def _forget(self) -> None:
        self._weighted = self._target / (_ONE - self._decay)
        self._weight = _ONE / (_ONE - self._decay)
        self._pending: tuple[int, np.float32] | None = None

    def select(self, c: Candidates) -> Choice:
        probs = softmax(c)
        if self._target < 0:
            return drawn(c, probs, self._rng)[1]
        aim = min(max(2 * self._target - self._weighted / self._weight, np.float32(0)), _ONE)
        distance = np.abs((probs - aim) * _INVERSE_WIDTH)
        shaped = _PEAK - _SHARPNESS * distance * distance / (_ONE + distance)
        shaped = np.where(c.logits == -np.inf, c.logits, shaped)
        # They keep their places although the logits no longer fall: softmax takes the first as its
        # reference, as the original does, and the result counts as unsorted.
        shares = softmax(c.with_logits(shaped, c.is_sorted))
        index, choice = drawn(c.with_logits(shaped, False), shares, self._rng)
        self._pending = (choice.token, probs[index])
        return choice

    def accept(self, token: int) -> None:
        if self._pending is not None and self._pending[0] == token:
            self._weighted = self._pending[1] + self._decay * self._weighted
            self._weight = _ONE + self._decay * self._weight
        self._pending = None

    def reset(self) -> None:
        self._forget()
        self._rng.reset()

    def clone(self) -> "AdaptiveP":
        copy = AdaptiveP(float(self._target), float(self._decay), self._rng.clone())
        copy._weighted, copy._weight, copy._pending = self._weighted, self._weight, self._pending
        return copy
