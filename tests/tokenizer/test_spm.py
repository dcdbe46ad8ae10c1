"""SentencePiece vocabularies: the leading space, byte tokens, scores."""

from app.tokenizer.factory import load_tokenizer
from tests.tokenizer.tiny_vocab import CONTROL, sentence_piece

PIECES = {"▁": -1.0, "a": -2.0, "b": -2.0, "▁a": -0.5, "ab": -0.7, "▁ab": -0.9}


def texts(text: str, *, parse_special: bool = True, add_space_prefix: bool = True) -> list[str]:
    keys = sentence_piece(PIECES, special={"<t>": CONTROL}, add_space_prefix=add_space_prefix)
    tokenizer = load_tokenizer(keys)
    ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
    return [tokenizer.vocab.tokens[i] for i in ids]


def test_a_space_is_put_before_the_text_and_after_special_tokens() -> None:
    assert texts("a<t>b") == ["▁a", "<t>", "▁", "b"]
    assert texts("a<t>b", add_space_prefix=False) == ["a", "<t>", "b"]


def test_no_space_is_put_before_a_special_token_or_into_nothing() -> None:
    assert texts("<t>") == ["<t>"]
    assert texts("") == []


def test_special_tokens_written_out_are_text_unless_asked_for() -> None:
    assert "<t>" not in texts("<t>", parse_special=False)


def test_the_pair_with_the_best_score_is_merged_first() -> None:
    # "▁a" (-0.5) wins over "ab" (-0.7), then "▁ab" is made of both.
    assert texts("ab") == ["▁ab"]
    assert texts("aab", add_space_prefix=False) == ["a", "ab"]


def test_what_no_token_covers_is_spelled_in_bytes() -> None:
    assert texts("é", add_space_prefix=False) == ["<0xC3>", "<0xA9>"]


def test_a_byte_without_any_token_is_the_unknown_token() -> None:
    keys = sentence_piece(PIECES, add_space_prefix=False)
    tokens = keys["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokens[tokens.index("<0xC3>")] = "gone"
    tokenizer = load_tokenizer(keys)
    ids = tokenizer.encode("é", add_special=False, parse_special=False)
    assert [tokens[i] for i in ids] == ["<unk>", "<0xA9>"]


def test_pieces_join_to_text_with_the_leading_space() -> None:
    tokenizer = load_tokenizer(sentence_piece(PIECES))
    ids = tokenizer.encode("ab é", add_special=True, parse_special=False)
    assert tokenizer.decode(ids, special=False) == " ab é"
    assert tokenizer.decode(ids, special=True) == "<s> ab é"
