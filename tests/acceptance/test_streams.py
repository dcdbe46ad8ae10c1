"""Eight streams at once: each to the last bit as if it were alone.

Streams share one KV cache and one step. What a sequence gets depends neither on where its keys lie
nor on who computes beside it: pages of cells (engine/kv_cache), micro-batches of few and of many
tokens (engine/runner), attention token by token (csrc/attention_decode.cpp).
"""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest

from tests.helpers.assets import asset
from tests.helpers.server_process import running_server

STORIES = (
    "Once upon a time there was a little girl named Lily.",
    "One day, a big dog ran into the garden and",
    "Tom and Mia liked to play with their red ball.",
    "The sun was warm and the bird sang a song.",
    "Mom said it was time to go to bed, but Ben",
    "A cat sat on the mat. It saw a mouse and",
    "There was a boat on the blue sea.",
    "Grandpa had an old hat in his house.",
)
N_PREDICT = 24
SIZES = ("-c", "4096", "-np", "8", "-t", "1")
GREEDY = {"temperature": 0}
SEEDED = {"temperature": 0.8, "seed": 42}


@dataclass(frozen=True)
class Told:
    """What one stream told: its tokens, and for each the candidates' log-probabilities."""

    tokens: tuple[int, ...]
    candidates: tuple[dict[int, float], ...]


@dataclass(frozen=True)
class Asker:
    """Asks one server for streams."""

    url: str

    def tell(self, story: str, options: Mapping[str, object]) -> Told:
        """One stream, read to its end."""
        body = {"prompt": story, "n_predict": N_PREDICT, "stream": True, "return_tokens": True}
        body |= {"ignore_eos": True, "cache_prompt": False, **options}
        tokens: list[int] = []
        candidates: list[dict[int, float]] = []
        with httpx.stream("POST", f"{self.url}/completion", json=body, timeout=100) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    tokens += event["tokens"]
                    for entry in event.get("completion_probabilities", ()):
                        top = entry["top_logprobs"]
                        candidates.append({c["id"]: c["logprob"] for c in top})
        return Told(tuple(tokens), tuple(candidates))

    def alone(self, options: Mapping[str, object]) -> list[Told]:
        """Every story, one after the other."""
        return [self.tell(story, options) for story in STORIES]

    def together(self, options: Mapping[str, object]) -> list[Told]:
        """Every story at the same time."""
        with ThreadPoolExecutor(len(STORIES)) as threads:
            return list(threads.map(lambda story: self.tell(story, options), STORIES))


@pytest.fixture(scope="module", params=["", "reference"], ids=["native", "reference"])
def floats(request: pytest.FixtureRequest) -> Iterator[Asker]:
    """A small model with float weights, on each executor."""
    with ExitStack() as running:
        with pytest.MonkeyPatch.context() as patch:
            if request.param:
                patch.setenv("LLAMA_SERVE_CPU_LEVEL", request.param)
            server = running_server("-m", str(asset("stories260k")), *SIZES)
            url = running.enter_context(server).url
        yield Asker(url)


@pytest.mark.parametrize("options", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_eight_streams_are_each_as_alone(floats: Asker, options: Mapping[str, object]) -> None:
    alone = floats.alone(options)
    assert floats.together(options) == alone
    assert all(len(told.tokens) == N_PREDICT for told in alone)
    assert len({told.tokens for told in alone}) == len(STORIES)


@pytest.mark.model
@pytest.mark.parametrize("threads", ["1", "2"])
def test_eight_streams_of_a_quantised_model_have_the_probabilities_that_each_has_alone(
    threads: str,
) -> None:
    with running_server("-m", str(asset("smollm2")), *SIZES, "-t", threads) as server:
        asker = Asker(server.url)
        for options in (GREEDY, SEEDED):
            alone = asker.alone({**options, "n_probs": 10})
            assert asker.together({**options, "n_probs": 10}) == alone
            assert all(len(told.candidates) == N_PREDICT for told in alone)
