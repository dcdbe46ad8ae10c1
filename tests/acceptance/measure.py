"""Distance of a run from exact arithmetic, and the figures that stock llama.cpp sets.

The distance of a prompt is the mean of |ours - exact| over our ten most probable tokens. Stock
llama.cpp's own mean distance is 0.082 on SmolLM2 and 0.098 on Gemma 3, because it rounds
activations to eight bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.helpers.exact import exact_logprobs
from tests.helpers.local_engine import Asker
from tests.helpers.prompts import PROMPTS

STOCK_DISTANCE = {"smollm2": 0.082, "gemma3": 0.098}
CLEAR_MARGIN = 0.3
N_TOP = 10

Record = Callable[[str, object], None]


@dataclass(frozen=True)
class Distance:
    """One prompt: distances over the top ten, and whether the first choices agree."""

    mean: float
    worst: float
    same_choice: bool
    margin: float


@lru_cache(maxsize=4 * len(PROMPTS))
def exact_of(path: Path, tokens: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Exact log-probabilities (n_vocab,), computed once for all runs that are measured by them."""
    return exact_logprobs(path, tokens)


def report(name: str, distances: Sequence[Distance], record: Record) -> None:
    """Put the figures where pytest's reports show them (-rP, junit)."""
    record(f"{name} mean distance", float(np.mean([d.mean for d in distances])))
    record(f"{name} worst distance", max(d.worst for d in distances))


def distance(asker: Asker, path: Path, prompt: str) -> Distance:
    tokens = asker.tokens(prompt)
    probs = asker.greedy(prompt, 1, n_probs=N_TOP).logprobs[0]
    exact = exact_of(path, tuple(tokens))
    gaps = [abs(entry.logprob - exact[entry.token]) for entry in probs.top]
    best = np.sort(exact)[::-1]
    return Distance(
        float(np.mean(gaps)),
        float(max(gaps)),
        int(exact.argmax()) == probs.token,
        float(best[0] - best[1]),
    )
