"""How far the first token's log-probabilities are from exact arithmetic on the same weights.

The distance of a prompt is the mean of |ours - exact| over our ten most probable tokens. Stock
llama.cpp's own mean distance is 0.082 on SmolLM2 and 0.098 on Gemma 3, because it rounds
activations to eight bits. The reference executor computes in float32, so only the order of its sums
differs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from app.ggml.types import GGMLType
from tests.helpers.assets import asset
from tests.helpers.exact import exact_logprobs
from tests.helpers.local_engine import Asker, running_engine, small_run
from tests.helpers.prompts import LONG_PROMPT, PROMPTS

REFERENCE_BOUND = 0.005
STOCK_DISTANCE = {"smollm2": 0.082, "gemma3": 0.098}
CLEAR_MARGIN = 0.3
N_TOP = 10

pytestmark = pytest.mark.model


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


def report(name: str, distances: list[Distance], record: Callable[[str, object], None]) -> None:
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


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_reference_executor_is_exact(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    path = asset(name)
    config = small_run(path, cache_type_k=GGMLType.F32, cache_type_v=GGMLType.F32)
    with running_engine(config) as asker:
        assert len(asker.tokens(PROMPTS[LONG_PROMPT])) > 800
        distances = [distance(asker, path, prompt) for prompt in PROMPTS]
    report(name, distances, record_property)
    assert max(d.worst for d in distances) < REFERENCE_BOUND
    assert all(d.same_choice for d in distances if d.margin > REFERENCE_BOUND)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_default_run_is_no_farther_from_exact_than_stock(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    path = asset(name)
    with running_engine(small_run(path)) as asker:
        distances = [distance(asker, path, prompt) for prompt in PROMPTS]
    mean = float(np.mean([d.mean for d in distances]))
    report(name, distances, record_property)
    assert mean <= STOCK_DISTANCE[name]
    assert all(d.same_choice for d in distances if d.margin > CLEAR_MARGIN)
