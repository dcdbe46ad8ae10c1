"""Distance of a run from exact arithmetic, and the figures that stock llama.cpp sets.

The distance of a prompt is the mean of |ours - exact| over our ten most probable tokens. Stock
llama.cpp is a tenth away, because it rounds activations to eight bits: 0.082 on SmolLM2 and 0.098
on Gemma 3 over one dozen of prompts, 0.100 and 0.112 over this one. A mean of a dozen wanders by an
eighth when nothing but the order of sums changes, so a run with the same kernels is compared with
what stock itself does on the same prompts, with `WANDERING` to spare.
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
from tests.helpers.stock_logits import stock_logits

STOCK_DISTANCE = {"smollm2": 0.082, "gemma3": 0.098}
CLEAR_MARGIN = 0.3
WANDERING = 1.25
N_TOP = 10

Record = Callable[[str, object], None]


@dataclass(frozen=True)
class Distance:
    """One prompt: distances over the top ten, and whether the first choices agree."""

    mean: float
    worst: float
    choice: int
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
        probs.token,
        int(exact.argmax()) == probs.token,
        float(best[0] - best[1]),
    )


@dataclass(frozen=True)
class Stock:
    """Stock llama.cpp on the same prompts: its mean distance, first choices and their margins."""

    mean: float
    choices: tuple[int, ...]
    margins: tuple[float, ...]


def stock_on(path: Path, prompts: Sequence[Sequence[int]]) -> Stock:
    """Measure stock llama.cpp as it runs by default, with an F16 cache."""
    gaps, choices, margins = [], [], []
    for tokens, logits in zip(prompts, stock_logits(path, prompts, type_kv="f16"), strict=True):
        wide = logits.astype(np.float64)
        logprobs = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
        top = np.argsort(-logprobs)[:N_TOP]
        gaps.append(np.abs(logprobs[top] - exact_of(path, tuple(tokens))[top]).mean())
        choices.append(int(top[0]))
        margins.append(float(logprobs[top[0]] - logprobs[top[1]]))
    return Stock(float(np.mean(gaps)), tuple(choices), tuple(margins))
