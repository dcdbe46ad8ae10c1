"""Special ids and ends of generation where the file is silent or wrong about them."""

import numpy as np
import pytest

from app.errors import ModelFormatError
from app.ggml.gguf_file import MetaValue
from app.tokenizer.base import TokenType, Vocab
from app.tokenizer.factory import load_tokenizer
from tests.tokenizer.tiny_vocab import CONTROL, NORMAL, USER, byte_level, sentence_piece


def vocab_with(*texts: str, kind: int = NORMAL, **more: int) -> Vocab:
    keys = byte_level(special=dict.fromkeys(texts, kind))
    return load_tokenizer(keys | {f"tokenizer.ggml.{key}": i for key, i in more.items()}).vocab


def eog_texts(vocab: Vocab) -> set[str]:
    return {vocab.tokens[token] for token in vocab.eog} - {vocab.tokens[11]}


def test_ends_are_found_by_their_text_and_become_control_tokens() -> None:
    vocab = vocab_with("<|im_end|>", "<|endoftext|>", "plain")
    assert vocab.special.eot == vocab.ids["<|im_end|>"]
    assert eog_texts(vocab) == {"<|im_end|>", "<|endoftext|>"}
    assert vocab.types[vocab.ids["<|im_end|>"]] == TokenType.CONTROL
    assert vocab.types[vocab.ids["plain"]] == TokenType.NORMAL


def test_a_key_wins_over_the_text() -> None:
    vocab = vocab_with("<|im_end|>", "stop", eot_token_id=257)
    assert vocab.special.eot == 257
    assert eog_texts(vocab) == {"<|im_end|>", "stop"}


def test_repository_and_padding_marks_of_code_models_end_a_generation() -> None:
    vocab = vocab_with("<|repo_name|>", "<|fim_pad|>", "<|file_sep|>", "<|fim_prefix|>")
    assert eog_texts(vocab) == {"<|repo_name|>", "<|fim_pad|>", "<|file_sep|>"}
    assert vocab.special.fim_pre == vocab.ids["<|fim_prefix|>"]


def test_the_older_keys_of_fill_in_the_middle_are_read() -> None:
    vocab = vocab_with("p", "s", "m", prefix_token_id=70, suffix_token_id=71, middle_token_id=72)
    special = vocab.special
    assert (special.fim_pre, special.fim_suf, special.fim_mid) == (70, 71, 72)


def test_in_harmony_vocabularies_a_part_does_not_end_the_reply() -> None:
    vocab = vocab_with("<|end|>", "<|return|>", "<|call|>", "<|channel|>", kind=CONTROL)
    assert eog_texts(vocab) == {"<|return|>", "<|call|>"}
    for shown in ("<|end|>", "<|channel|>"):
        assert vocab.types[vocab.ids[shown]] == TokenType.USER_DEFINED
    assert "<|end|>" in eog_texts(vocab_with("<|end|>", kind=CONTROL))


def test_where_s_is_an_html_tag_it_is_plain_text() -> None:
    vocab = vocab_with("</s>", "<|tool_response>", kind=USER)
    assert eog_texts(vocab) == {"<|tool_response>"}
    assert vocab.types[vocab.ids["</s>"]] == TokenType.NORMAL


def test_an_empty_token_gets_a_name() -> None:
    keys = byte_level()
    tokens = keys["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokens[7] = ""
    assert load_tokenizer(keys).vocab.tokens[7] == "[EMPTY_7]"


def test_without_types_every_token_is_normal() -> None:
    keys = byte_level()
    del keys["tokenizer.ggml.token_type"]
    assert set(load_tokenizer(keys).vocab.types) == {TokenType.NORMAL}


@pytest.mark.parametrize(
    ("kind", "text", "piece"),
    [
        (TokenType.BYTE, "<0xE4>", b"\xe4"),
        (TokenType.NORMAL, "▁a▁", b" a "),
        (TokenType.USER_DEFINED, "▁▁", "▁▁".encode()),
        (TokenType.UNUSED, "gone", b""),
        (TokenType.UNDEFINED, "gone", b""),
        (TokenType.NORMAL, "broken\udce4", b"broken\xe4"),
        (99, "gone", b""),
    ],
)
def test_a_piece_depends_on_the_type(kind: int, text: str, piece: bytes) -> None:
    tokenizer = load_tokenizer(
        sentence_piece({"x": 0.0}, special={text: kind} if kind != TokenType.BYTE else {})
    )
    token = tokenizer.vocab.ids[text]
    assert tokenizer.piece(token, special=False) == piece


def test_integer_scores_are_scores() -> None:
    keys = sentence_piece({"a": 0.0, "b": 0.0, "ab": 0.0})
    n_tokens = 259 + 3
    keys["tokenizer.ggml.scores"] = np.zeros(n_tokens, np.int32)
    tokenizer = load_tokenizer({**keys, "tokenizer.ggml.add_space_prefix": False})
    ids = tokenizer.encode("ab", add_special=False, parse_special=False)
    assert ids == [tokenizer.vocab.ids["ab"]]


def test_suppressed_tokens_are_read_without_ids_that_no_token_has() -> None:
    keys = byte_level(suppress_tokens=np.array([7, 3, 7, -1, 256, 999], np.int32))
    assert load_tokenizer(keys).vocab.suppressed == (3, 7)
    assert load_tokenizer(byte_level()).vocab.suppressed == ()


@pytest.mark.parametrize("value", [5, "7", np.array([1.0], np.float32)])
def test_suppressed_tokens_must_be_ids(value: MetaValue) -> None:
    with pytest.raises(ModelFormatError, match="suppress_tokens"):
        load_tokenizer(byte_level(suppress_tokens=value))
