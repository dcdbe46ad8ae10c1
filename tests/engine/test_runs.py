"""Runs that must agree: alone and in company, whole and in pieces, cold and from the cache.

All on the reference executor, whose sums do not depend on how a prompt is cut by more than the last
bit; greedy texts are equal wherever no two tokens are that close, which these prompts see to.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.config import CpuExecutor, EngineConfig, FlashAttention
from app.engine.request import GenerationRequest
from app.ggml.types import GGMLType
from app.sampling.params import SamplingParams
from tests.helpers.assets import asset
from tests.helpers.local_engine import Answer, Asker, running_engine, small_run
from tests.helpers.tiny_gguf import TinyConfig, write_tiny

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
N_PREDICT = 20


def config(path: Path, **changes: object) -> EngineConfig:
    """A small run on the reference executor."""
    return small_run(path, (), cpu_executor=CpuExecutor.REFERENCE, warmup=False, **changes)


def request(asker: Asker, prompt: str, **changes: object) -> GenerationRequest:
    base = GenerationRequest(
        tuple(asker.tokens(prompt)), SamplingParams(temperature=0.0), n_predict=N_PREDICT
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def texts(answers: list[Answer]) -> list[str]:
    return [answer.text for answer in answers]


@pytest.fixture(scope="module")
def stories() -> Path:
    return asset("stories260k")


@pytest.fixture(scope="module")
def window_model(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Gemma 3 whose window of 16 tokens is shorter than the prompts."""
    path = tmp_path_factory.mktemp("window") / "gemma3.gguf"
    write_tiny(path, stories, TinyConfig("gemma3"))
    return path


@pytest.fixture(scope="module", params=["llama", "gemma3 with a window"])
def path(request: pytest.FixtureRequest, stories: Path, window_model: Path) -> Path:
    return stories if request.param == "llama" else window_model


@pytest.fixture(scope="module")
def alone(path: Path) -> Iterator[list[str]]:
    """Each story told by a server that does nothing else."""
    with running_engine(config(path)) as asker:
        yield [asker.ask(request(asker, story, cache_prompt=False))[0].text for story in STORIES]


def test_streams_in_company_are_as_alone(path: Path, alone: list[str]) -> None:
    with running_engine(config(path, n_parallel=8, kv_unified=True)) as asker:
        assert texts(asker.ask(*(request(asker, story) for story in STORIES))) == alone


def test_more_requests_than_slots_are_as_alone(path: Path, alone: list[str]) -> None:
    with running_engine(config(path, n_parallel=2)) as asker:
        assert texts(asker.ask(*(request(asker, story) for story in STORIES))) == alone


def test_a_pool_too_small_for_all_costs_no_text(path: Path, alone: list[str]) -> None:
    small = config(path, n_ctx=256, n_parallel=8, kv_unified=True)
    long = " " + STORIES[0] * 2
    with running_engine(small) as asker:
        expected = [
            asker.ask(request(asker, story + long, cache_prompt=False))[0].text for story in STORIES
        ]
        together = asker.ask(*(request(asker, story + long) for story in STORIES))
    assert texts(together) == expected


@pytest.mark.parametrize("n_ubatch", [1, 3, 16])
def test_a_prompt_in_pieces_is_as_a_whole(path: Path, alone: list[str], n_ubatch: int) -> None:
    with running_engine(config(path, n_ubatch=n_ubatch, n_batch=32)) as asker:
        got = [asker.ask(request(asker, story, cache_prompt=False))[0].text for story in STORIES]
    assert got == alone


def test_without_flash_attention_the_text_is_the_same(path: Path, alone: list[str]) -> None:
    with running_engine(config(path, flash_attn=FlashAttention.OFF)) as asker:
        got = [asker.ask(request(asker, story, cache_prompt=False))[0].text for story in STORIES]
    assert got == alone


def test_a_conversation_reuses_its_past_and_reads_as_if_cold(path: Path) -> None:
    with running_engine(config(path, n_parallel=1, n_ubatch=16, n_batch=32)) as asker:
        tokens = asker.tokens(STORIES[0])
        n_before = 0
        for story in STORIES:
            turn = replace(request(asker, STORIES[0]), prompt=tuple(tokens))
            warm = asker.ask(turn)[0]
            cold = asker.ask(replace(turn, cache_prompt=False))[0]
            assert warm.tokens == cold.tokens
            assert warm.finished.n_cached_tokens >= n_before
            n_before = len(tokens)
            tokens += [*warm.tokens, *asker.tokens(story)[1:]]


def test_a_step_back_behind_the_window_is_computed_again(window_model: Path) -> None:
    with running_engine(config(window_model, n_parallel=1, n_ubatch=16, n_batch=16)) as asker:
        tokens = [token for story in STORIES * 3 for token in asker.tokens(story)]
        assert len(tokens) > 300
        first = replace(request(asker, ""), prompt=tuple(tokens[:40]))
        expected = asker.ask(first)[0]
        asker.ask(replace(first, prompt=tuple(tokens)))
        again = asker.ask(first)[0]
    assert again.tokens == expected.tokens
    assert again.finished.n_cached_tokens == 0


@pytest.mark.parametrize("type_", [GGMLType.F32, GGMLType.BF16])
def test_caches_of_other_float_types_run(stories: Path, type_: GGMLType) -> None:
    with running_engine(config(stories, cache_type_k=type_, cache_type_v=type_)) as asker:
        assert asker.ask(request(asker, STORIES[0]))[0].text


def test_a_cache_of_bytes_runs_where_heads_are_whole_blocks(stories: Path, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "wide.gguf", stories, TinyConfig("llama", head_dim=32))
    changes = {"cache_type_k": GGMLType.Q8_0, "cache_type_v": GGMLType.Q8_0}
    with running_engine(config(path, **changes)) as asker:
        assert asker.ask(request(asker, STORIES[0]))[0].tokens
    with (
        pytest.raises(AssertionError, match="whole blocks of 32"),
        running_engine(config(stories, **changes)),
    ):
        pass


def test_a_seed_reproduces_a_text(stories: Path) -> None:
    with running_engine(config(stories, n_parallel=2)) as asker:
        params = SamplingParams(temperature=1.0, seed=7)
        one, two = asker.ask(
            request(asker, STORIES[0], sampling=params), request(asker, STORIES[0], sampling=params)
        )
        other = asker.ask(request(asker, STORIES[0], sampling=replace(params, seed=8)))[0]
    assert one.text == two.text != other.text
