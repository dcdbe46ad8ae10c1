"""The place for a grammar in the chain: what it must be able to say.

A sampler first chooses without it. When the constraint does not allow the choice, the chain runs
again over the allowed tokens only, with new draws, as common_sampler_sample in llama.cpp's
common/sampling.cpp does.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


class Constraint(Protocol):
    """What a grammar is to the chain: it judges tokens and follows the accepted ones."""

    def allows(self, token: int) -> bool:
        """Return whether the text may go on with this token."""

    def mask(self) -> Mask:
        """Return for each token of the vocabulary (n_vocab,) whether the text may go on with it."""

    def accept(self, token: int) -> None:
        """Follow a token."""

    def reset(self) -> None:
        """Go back to the start."""

    def clone(self) -> "Constraint":
        """Return an independent copy."""
