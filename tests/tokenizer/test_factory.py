"""Choosing a tokenizer: unknown names, missing keys, BOS and EOS rules."""

import logging

import numpy as np
import pytest

from app.errors import ModelFormatError, RequestError, UnsupportedError
from app.ggml.gguf_file import MetaValue
from app.tokenizer.base import without_bos_text
from app.tokenizer.factory import load_tokenizer
from tests.tokenizer.tiny_vocab import CONTROL, byte_level, sentence_piece

SPECIAL = {"<bos>": CONTROL, "<eos>": CONTROL}


def with_ends(*, add_bos: bool, add_eos: bool = False) -> dict[str, MetaValue]:
    return byte_level(
        special=SPECIAL,
        bos_token_id=256,
        eos_token_id=257,
        add_bos_token=add_bos,
        add_eos_token=add_eos,
    )


def test_an_unknown_tokenizer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"'xyz'.*llama, gpt2"):
        load_tokenizer({**byte_level(), "tokenizer.ggml.model": "xyz"})


def test_an_unknown_pre_tokenizer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"'tokenizer\.ggml\.pre' is 'xyz'.*smollm"):
        load_tokenizer(byte_level(pre="xyz"))


def test_a_missing_pre_tokenizer_is_the_default_one_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = byte_level()
    del keys["tokenizer.ggml.pre"]
    default = load_tokenizer(keys)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "tokenizer.ggml.pre" in caplog.text
    named = load_tokenizer(byte_level(pre="default"))
    for text in ("12345 a+b", "$100"):
        ids = default.encode(text, add_special=False, parse_special=False)
        assert ids == named.encode(text, add_special=False, parse_special=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.tokens", "a"),
        ("tokenizer.ggml.tokens", []),
        ("tokenizer.ggml.tokens", ["same", "same"]),
        ("tokenizer.ggml.model", 3),
        ("tokenizer.ggml.model", ""),
        ("tokenizer.ggml.token_type", np.array([1, 2], np.int32)),
        ("tokenizer.ggml.scores", ["0"]),
        ("tokenizer.ggml.add_bos_token", "yes"),
        ("tokenizer.ggml.eos_token_id", "</s>"),
        ("tokenizer.ggml.eos_token_id", True),
    ],
)
def test_a_key_of_the_wrong_kind_is_refused_by_name(key: str, value: MetaValue) -> None:
    with pytest.raises(ModelFormatError, match=key.replace(".", r"\.")):
        load_tokenizer({**sentence_piece({"a": 0.0}), key: value})


def test_a_special_id_outside_the_vocabulary_is_ignored_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    vocab = load_tokenizer(sentence_piece({"a": 0.0}, eos_token_id=99_999)).vocab
    assert vocab.special.eos == 2
    assert "99999" in caplog.text
    silent = load_tokenizer(sentence_piece({"a": 0.0}, padding_token_id=(1 << 32) - 1)).vocab
    assert silent.special.pad is None


def test_bos_and_eos_follow_the_file() -> None:
    def ids(text: str, *, bos: bool, eos: bool, add_special: bool = True) -> list[int]:
        tokenizer = load_tokenizer(with_ends(add_bos=bos, add_eos=eos))
        return tokenizer.encode(text, add_special=add_special, parse_special=True)

    a = ids("a", bos=False, eos=False)
    assert ids("a", bos=True, eos=True) == [256, *a, 257]
    assert ids("a", bos=True, eos=False) == [256, *a]
    assert ids("a", bos=True, eos=True, add_special=False) == a
    assert ids("", bos=True, eos=True) == [256, 257]


def test_there_is_exactly_one_bos_whatever_the_prompt_begins_with() -> None:
    tokenizer = load_tokenizer(with_ends(add_bos=True, add_eos=True))
    for prompt in ("a", "<bos>a", "<bos>a<eos>"):
        ids = tokenizer.encode(prompt, add_special=True, parse_special=True)
        assert (ids[0], ids.count(256)) == (256, 1)
        assert (ids[-1], ids.count(257)) == (257, 1)


def test_a_rendered_prompt_loses_the_bos_and_eos_that_encoding_adds() -> None:
    adding = load_tokenizer(with_ends(add_bos=True, add_eos=True)).vocab
    assert without_bos_text("<bos>hi<eos>", adding) == "hi"
    assert without_bos_text("hi", adding) == "hi"
    plain = load_tokenizer(with_ends(add_bos=False)).vocab
    assert without_bos_text("<bos>hi<eos>", plain) == "<bos>hi<eos>"


def test_bos_is_not_added_when_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = load_tokenizer(byte_level(pre="glm4", add_bos_token=True))
    assert tokenizer.encode("", add_special=True, parse_special=False) == []
    assert "add_bos_token" in caplog.text


def test_the_name_of_the_pre_tokenizer_decides_where_the_file_is_silent() -> None:
    assert load_tokenizer(byte_level(pre="llama-bpe")).vocab.add_bos
    assert not load_tokenizer(byte_level(pre="gpt-2")).vocab.add_bos
    assert load_tokenizer(sentence_piece({"a": 0.0})).vocab.add_bos


def test_an_id_outside_the_vocabulary_is_an_error_of_the_request() -> None:
    tokenizer = load_tokenizer(byte_level())
    for token in (-1, 256, 1 << 40):
        with pytest.raises(RequestError, match=f"token id {token} .*0 to 255"):
            tokenizer.piece(token, special=True)
        with pytest.raises(RequestError):
            tokenizer.decode([token], special=True)
