"""Byte-pair vocabularies: bytes in and out, merges, broken files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ModelFormatError
from app.tokenizer.factory import load_tokenizer
from tests.tokenizer.tiny_vocab import CONTROL, USER, byte_level

MERGES = ["h e", "l l", "he ll", "Ġ w", "Ġw o", "Ã ©", "hell o"]
TOKENIZER = load_tokenizer(byte_level(MERGES))


@given(st.text())
def test_any_text_survives_the_way_to_ids_and_back(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special=False, parse_special=False)
    assert TOKENIZER.decode(ids, special=False) == text


@given(st.text(max_size=20))
def test_ids_do_not_depend_on_what_was_encoded_before(text: str) -> None:
    fresh = load_tokenizer(byte_level(MERGES))
    expected = fresh.encode(text, add_special=False, parse_special=False)
    for _ in range(2):
        assert TOKENIZER.encode(text, add_special=False, parse_special=False) == expected


def test_merges_follow_their_rank() -> None:
    vocab = TOKENIZER.vocab
    ids = TOKENIZER.encode("hello world é", add_special=False, parse_special=False)
    assert [vocab.tokens[i] for i in ids] == ["hello", "Ġwo", "r", "l", "d", "Ġ", "Ã©"]


def test_the_first_of_equal_merges_keeps_its_rank() -> None:
    tokenizer = load_tokenizer(byte_level(["a b", "b c"], special={}))
    keys = byte_level(["a b", "b c"])
    keys["tokenizer.ggml.merges"] = ["a b", "b c", "a b"]
    again = load_tokenizer(keys)
    for text in ("abc", "abcabc"):
        expected = tokenizer.encode(text, add_special=False, parse_special=False)
        assert again.encode(text, add_special=False, parse_special=False) == expected


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    ids = TOKENIZER.encode("a\ud800b\ud83d\ude00", add_special=False, parse_special=False)
    assert TOKENIZER.decode(ids, special=False) == "a\ufffdb😀"


def test_a_byte_without_a_token_is_unknown_or_reported(caplog: pytest.LogCaptureFixture) -> None:
    keys = byte_level()
    tokens = keys["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokens[tokens.index("x")] = "unused"
    dropping = load_tokenizer(keys)
    for _ in range(2):
        ids = dropping.encode("axbx", add_special=False, parse_special=False)
        assert dropping.decode(ids, special=True) == "ab"
    assert caplog.text.count("0x78") == 1
    replacing = load_tokenizer({**keys, "tokenizer.ggml.unknown_token_id": tokens.index("q")})
    ids = replacing.encode("axb", add_special=False, parse_special=False)
    assert replacing.decode(ids, special=True) == "aqb"


def test_a_file_without_merges_is_refused() -> None:
    keys = byte_level()
    del keys["tokenizer.ggml.merges"]
    with pytest.raises(ModelFormatError, match=r"tokenizer\.ggml\.merges"):
        load_tokenizer(keys)


def test_control_tokens_are_shown_only_on_demand_and_user_tokens_always() -> None:
    tokenizer = load_tokenizer(byte_level(special={"<|im_end|>": CONTROL, "<think>": USER}))
    ids = tokenizer.encode("<think>a<|im_end|>", add_special=False, parse_special=True)
    assert len(ids) == 3
    assert tokenizer.decode(ids, special=False) == "<think>a"
    assert tokenizer.decode(ids, special=True) == "<think>a<|im_end|>"
    assert tokenizer.is_eog(ids[-1])
    assert not tokenizer.is_eog(ids[0])
