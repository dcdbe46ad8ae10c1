"""Random numbers as libstdc++ draws them, so that a seed reproduces llama.cpp's own choices.

Used by every sampler that draws. The generator is std::mt19937; a double takes two of its 32-bit
words (std::uniform_real_distribution<double>), a float one. The legacy seeding of NumPy's MT19937
is the seeding of the C++ standard; NumPy's own Generator combines the words differently.
"""

import secrets
from typing import Final

import numpy as np
import numpy.typing as npt

RANDOM_SEED: Final = 0xFFFFFFFF
"""The seed that stands for "choose one"; -1 as an unsigned 32-bit number."""

_WORD: Final = 2.0**32
_BELOW_ONE: Final = 1.0 - 2.0**-53
_BELOW_ONE_F32: Final = 1.0 - 2.0**-24


def resolve_seed(seed: int) -> int:
    """Return the seed to use: a fresh one for RANDOM_SEED, else the seed itself."""
    return secrets.randbelow(RANDOM_SEED) if seed == RANDOM_SEED else seed


class Mt19937:
    """std::mt19937 with the draws that llama.cpp makes from it."""

    __slots__ = ("_bits", "_seed")

    def __init__(self, seed: int) -> None:
        """`seed` is a number below 2**32."""
        self._seed = seed
        self._bits = np.random.MT19937(0)
        self.reset()

    def reset(self) -> None:
        """Go back to the first draw."""
        self._bits._legacy_seeding(self._seed)

    def clone(self) -> "Mt19937":
        """Return a generator that will draw the same numbers from here on."""
        copy = Mt19937(self._seed)
        copy._bits.state = self._bits.state
        return copy

    def word(self) -> int:
        """Draw 32 bits."""
        return int(self._bits.random_raw())

    def uniform(self) -> float:
        """Draw a double in [0, 1)."""
        low = self.word()
        return min((low + self.word() * _WORD) / (_WORD * _WORD), _BELOW_ONE)

    def uniform_f32(self) -> float:
        """Draw a float in [0, 1)."""
        return min(float(np.float32(self.word())) / _WORD, _BELOW_ONE_F32)

    def discrete(self, weights: npt.NDArray[np.float32]) -> int:
        """Draw an index by weight, as std::discrete_distribution does: no draw for one weight."""
        if weights.size < 2:
            return 0
        exact = weights.astype(np.float64)
        steps = np.cumsum(exact / np.cumsum(exact)[-1])
        steps[-1] = 1.0
        return int(np.searchsorted(steps, self.uniform(), side="left"))
