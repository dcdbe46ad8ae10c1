"""Our chain against stock llama.cpp's samplers in its own library: the same token, draw by draw.

Requests are made up by a seeded generator over the whole table of parameters; logits are random,
with some tokens of the prompt made likely so that penalties matter. Typical-p is kept apart from
what makes tokens impossible: there the stock sampler computes NaN and its choice is undefined.
"""

import random
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pytest

from app.sampling.candidates import F32
from app.sampling.chain import Sampler, SamplerFactory
from app.sampling.choice import Choice
from app.sampling.params import SamplingParams, params_from_request
from tests.helpers.assets import asset
from tests.sampling.stock_library import StockLibrary, StockSampler

pytestmark = pytest.mark.peer_v7

N_PROMPT_TOKENS: Final = 8
STEPS: Final = 10

Menu = dict[str, tuple[object, ...]]
FILTERS: Final[Menu] = {
    "temperature": (0, 0.1, 0.5, 1, 1.3, 2.5),
    "dynatemp_range": (0, 0.2, 0.5, 3),
    "dynatemp_exponent": (1, 0.5, 2, -0.5),
    "top_k": (0, 1, 5, 40, 200, 1000),
    "top_p": (0, 0.5, 0.9, 0.99, 0.9999, 1),
    "min_p": (0, 0.01, 0.2, 0.9, 1),
    "top_n_sigma": (-1, 0.5, 1, 2, 5),
    "min_keep": (0, 1, 3, 20),
    "xtc_probability": (0, 0.3, 0.8, 1),
    "xtc_threshold": (0.01, 0.05, 0.1, 0.3, 0.6),
}
PENALTIES: Final[Menu] = {
    "repeat_last_n": (0, 4, 64, 1000),
    "repeat_penalty": (0.9, 1.1, 1.5),
    "presence_penalty": (0.5, -0.3, 1.7),
    "frequency_penalty": (0.1, -0.1),
    "logit_bias": ([[265, -1.5], [33, 5], [33, 0.3]], [[5, False], [6, -100]]),
}
DRY: Final[Menu] = {
    "dry_multiplier": (0.5, 0.8, 2),
    "dry_base": (1, 1.2, 1.75, 3),
    "dry_allowed_length": (0, 1, 2, 4),
    "dry_penalty_last_n": (0, 5, 64, 300),
    "dry_sequence_breakers": (["the"], ["\n", " a"], ["once upon"], ["e"], ["Lily", "zz"]),
}
TYPICAL: Final[Menu] = {
    "typical_p": (0.2, 0.9, 0.99),
    "top_k": (0, 5, 40, 200),
    "min_p": (0, 0.01, 0.2),
    "min_keep": (0, 3, 20),
}
SELECTORS: Final[Menu] = {
    "mirostat": (1, 2),
    "mirostat_tau": (1, 3, 5, 8),
    "mirostat_eta": (0.01, 0.1, 1),
    "temperature": (0, 0.5, 1, 1.7),
}
ADAPTIVE: Final[Menu] = {
    "samplers": ("ka", "pma", "a", "tka", "exa"),
    "adaptive_target": (-1, 0, 0.1, 0.5, 0.9),
    "adaptive_decay": (0, 0.5, 0.99),
    "temperature": (0.5, 1.7),
    "xtc_probability": (0.5,),
}
MENUS: Final[dict[str, Menu]] = {
    "filters": FILTERS,
    "penalties": FILTERS | PENALTIES,
    "dry": FILTERS | PENALTIES | DRY,
    "typical": TYPICAL,
    "mirostat": SELECTORS | PENALTIES,
    "adaptive": ADAPTIVE,
}


class StockVocab:
    """The stock tokenizer; tokens above its vocabulary stand for nothing."""

    eog_tokens = (2,)
    suppress_tokens = ()

    def __init__(self, library: StockLibrary, n_vocab: int) -> None:
        self._library = library
        self.n_vocab = n_vocab

    def tokenize(self, text: str) -> list[int]:
        return self._library.tokenize(text)

    def piece(self, token: int) -> bytes:
        return self._library.piece(token) if token < 512 else b""


@pytest.fixture(scope="module")
def library() -> StockLibrary:
    return StockLibrary(asset("peer_v7") / "bin", asset("stories260k"))


def made_up(rng: random.Random, menu: Menu, shuffles: bool) -> dict[str, object]:
    request = {name: rng.choice(values) for name, values in menu.items() if rng.random() < 0.6}
    if shuffles and rng.random() < 0.4:
        request["samplers"] = "".join(rng.sample("edskpmxt", rng.randrange(1, 9)))
    return {**request, "seed": rng.randrange(2**32 - 1)}


def logits_of(seed: int, n: int, step: int) -> F32:
    rng = np.random.default_rng([seed, step])
    values = (rng.standard_normal(n) * 3).astype(np.float32)
    values[:N_PROMPT_TOKENS] += np.float32(4 * (step % 2))
    return values


def steps(ours: Sampler, stock: StockSampler, seed: int, n: int) -> Iterator[tuple[Choice, int]]:
    for step in range(STEPS):
        values = logits_of(seed, n, step)
        token, ids, probs = stock.sample(values)
        choice = ours.sample(values)
        yield choice, token
        agree_on_probabilities(choice, ids, probs)
        stock.accept(token)
        ours.accept(token)


def agree_on_probabilities(
    choice: Choice, ids: np.ndarray[tuple[int], np.dtype[np.int32]], probs: F32
) -> None:
    """The same tokens with the same probabilities; the stock chain may add impossible ones."""
    n_vocab = int(max(ids.max(), choice.candidates.token_ids().max())) + 1
    theirs, mine = np.zeros(n_vocab), np.zeros(n_vocab)
    theirs[ids] = probs
    mine[choice.candidates.token_ids()] = choice.shares / np.float64(choice.total)
    # A few units in the last place of float32: expf is rounded differently in one of 2,000 values.
    np.testing.assert_allclose(mine, theirs, rtol=3e-6, atol=1e-30)


@pytest.mark.parametrize("n_vocab", [512, 33_000])
@pytest.mark.parametrize("name", MENUS)
def test_tokens_are_the_same_draw_by_draw(library: StockLibrary, name: str, n_vocab: int) -> None:
    rng = random.Random(f"{name} {n_vocab}")
    shuffles = name in ("filters", "penalties", "dry")
    factory = SamplerFactory(StockVocab(library, n_vocab))
    for case in range(60 if n_vocab == 512 else 15):
        request = made_up(rng, MENUS[name], shuffles)
        params = factory.resolve(params_from_request(request, SamplingParams()))
        prompt = [rng.randrange(N_PROMPT_TOKENS) for _ in range(rng.choice([0, 10, 100]))]
        ours = factory.build(params)
        ours.accept_prompt(prompt)
        with library.sampler(params, n_vocab) as stock:
            for token in prompt:
                stock.accept(token)
            for choice, token in steps(ours, stock, case, n_vocab):
                assert choice.token == token, (case, request)


CORNERS: Final[dict[str, Callable[[], F32]]] = {
    "one far ahead": lambda: np.where(np.arange(512) == 100, 90, 0).astype(np.float32),
    "masked but two": lambda: np.where(np.arange(512) % 300 == 7, 0, -np.inf).astype(np.float32),
    "all equal": lambda: np.zeros(512, dtype=np.float32),
    "steps": lambda: (np.arange(512) // 64).astype(np.float32),
}


@pytest.mark.parametrize("corner", CORNERS)
def test_corners(library: StockLibrary, corner: str) -> None:
    # Nothing here sorts: the stock order of equal logits is that of an unstable sort.
    request = {"top_k": 0, "top_p": 1, "min_p": 0.0001, "seed": 3}
    params = params_from_request(request, SamplingParams())
    ours = SamplerFactory(StockVocab(library, 512)).build(params)
    with library.sampler(params, 512) as stock:
        for _ in range(STEPS):
            values = CORNERS[corner]()
            assert ours.sample(values).token == stock.sample(values)[0]
