"""Ids of real models against stock llama.cpp, and how long loading and encoding may take."""

import time
from collections.abc import Callable
from functools import lru_cache

import pytest

from app.ggml.gguf_file import GGUFFile, Metadata
from app.tokenizer.base import Tokenizer
from app.tokenizer.factory import load_tokenizer
from tests.helpers.assets import asset
from tests.tokenizer.golden_data import model_cases

MODELS = (
    pytest.param("smollm2", marks=pytest.mark.model),
    pytest.param("gemma3", marks=pytest.mark.model),
    "stories260k",
)


@lru_cache(maxsize=1)
def metadata(name: str) -> Metadata:
    with GGUFFile.open(asset(name)) as gguf:
        return dict(gguf.metadata)


@lru_cache(maxsize=1)
def load(name: str) -> Tokenizer:
    return load_tokenizer(metadata(name))


def seconds(action: Callable[[], object], tries: int = 4) -> float:
    """Return the processor time of the shortest of a few runs, which a busy machine changes least:
    the work is done by this thread alone.
    """
    times = []
    for _ in range(tries):
        start = time.thread_time()
        action()
        times.append(time.thread_time() - start)
    return min(times)


def limit_for_four_times(short: float) -> float:
    """Return the longest time for four times the text: quadratic work would take sixteen times as
    long. Times of a few milliseconds say nothing on a busy machine, hence the constant.
    """
    return 8 * short + 0.05


@pytest.mark.parametrize("name", MODELS)
def test_awkward_texts_give_the_ids_of_llama_cpp(name: str) -> None:
    tokenizer, golden = load(name), model_cases(name)
    bos = tokenizer.vocab.special.bos
    for flags in golden["ids"]:
        for text, ids in zip(golden["texts"], flags["ids"], strict=True):
            # llama.cpp adds BOS to a text that has one; here there is exactly one.
            expected = ids[1:] if ids[:2] == [bos, bos] else ids
            got = tokenizer.encode(
                text, add_special=flags["add_special"], parse_special=flags["parse_special"]
            )
            assert got == expected, (text, flags["add_special"], flags["parse_special"])


@pytest.mark.parametrize("name", MODELS)
def test_text_survives_the_way_to_ids_and_back(name: str) -> None:
    tokenizer = load(name)
    for text in model_cases(name)["texts"]:
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        back = tokenizer.decode(ids, special=True)
        added = " " if tokenizer.vocab.add_space_prefix and text else ""
        # In SentencePiece the mark is the space, so it cannot come back as itself.
        marked = text.replace("\u2581", " ") if name != "smollm2" else text
        assert back == added + marked


@pytest.mark.model
@pytest.mark.parametrize(("name", "limit_s"), [("smollm2", 0.5), ("gemma3", 2.0)])
def test_loading_is_fast(name: str, limit_s: float) -> None:
    keys = metadata(name)

    def first_use() -> None:
        load_tokenizer(keys).encode("<start_of_turn>Hi", add_special=True, parse_special=True)

    assert seconds(first_use) < limit_s


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_encoding_a_prompt_is_fast_and_long_text_stays_near_linear(name: str) -> None:
    tokenizer = load(name)
    sentence = "The quick brown fox, 42 of them, jumped over {} lazy dogs: naïve façade — 你好!\n"
    text = "".join(sentence.format(i * 7919) for i in range(2000))

    def encode(n_chars: int) -> list[int]:
        return tokenizer.encode(text[:n_chars], add_special=True, parse_special=True)

    prompt_chars = 6000
    assert len(encode(prompt_chars)) >= 2000
    assert seconds(lambda: encode(prompt_chars)) < 0.05
    short, long = seconds(lambda: encode(12_500)), seconds(lambda: encode(50_000))
    assert long < limit_for_four_times(short)


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
@pytest.mark.parametrize("unit", ["ab", " ", "1", "你", "\n"])
def test_no_text_without_a_cut_takes_quadratic_time(name: str, unit: str) -> None:
    tokenizer = load(name)

    def encode(n_units: int) -> list[int]:
        return tokenizer.encode(unit * n_units, add_special=False, parse_special=False)

    short, long = seconds(lambda: encode(3_000)), seconds(lambda: encode(12_000))
    assert long < limit_for_four_times(short)
