"""Special tokens in text: the order of llama.cpp, user-defined tokens, swallowed spaces."""

import time

from hypothesis import given
from hypothesis import strategies as st

from app.tokenizer.base import TokenType
from app.tokenizer.factory import load_tokenizer
from app.tokenizer.special_tokens import SpecialSplitter
from tests.tokenizer.tiny_vocab import CONTROL, USER, byte_level, sentence_piece

WORDS = st.dictionaries(
    st.text(alphabet="<a> ", min_size=1, max_size=4), st.sampled_from([CONTROL, USER]), max_size=8
)
NUMBERED = {f"<unused{i}>": CONTROL for i in range(6000)}


def splitter(words: dict[str, int]) -> SpecialSplitter:
    # "~" keeps the words apart from the vocabulary's own single characters.
    vocab = load_tokenizer(byte_level(special={f"~{word}": kind for word, kind in words.items()}))
    return SpecialSplitter(vocab.vocab)


def plain_order(text: str, words: dict[str, int], ids: dict[str, int]) -> list[str | int]:
    """Each word in turn, the longest first, is cut out of whatever text is left."""
    pieces: list[str | int] = [text] if text else []
    for word in sorted(words, key=lambda w: (-len(w), ids[w])):
        result: list[str | int] = []
        for piece in pieces:
            parts = piece.split(word) if isinstance(piece, str) else []
            if not parts:
                result.append(piece)
            for i, part in enumerate(parts):
                result += ([ids[word]] if i else []) + ([part] if part else [])
        pieces = result
    return pieces


@given(words=WORDS, text=st.text(alphabet="<a> ~", max_size=30))
def test_a_single_scan_gives_what_word_by_word_in_order_gives(
    words: dict[str, int], text: str
) -> None:
    marked = {f"~{word}": kind for word, kind in words.items()}
    vocab = load_tokenizer(byte_level(special=marked)).vocab
    users = {word: kind for word, kind in marked.items() if kind == USER}
    found = SpecialSplitter(vocab)
    assert found.split(text, parse_special=True) == plain_order(text, marked, vocab.ids)
    assert found.split(text, parse_special=False) == plain_order(text, users, vocab.ids)


def test_where_tokens_overlap_the_longer_one_wins_though_it_starts_later() -> None:
    found = splitter({"ab": USER, "b~cd": USER})
    pieces = found.split("~ab~b~cdx", parse_special=True)
    assert [piece for piece in pieces if isinstance(piece, str)] == ["x"]
    overlapping = splitter({"a~": USER, "~ccc": USER}).split("~a~~ccc", parse_special=False)
    assert isinstance(overlapping[-1], int)


def test_unknown_tokens_are_found_like_control_tokens() -> None:
    vocab = load_tokenizer(sentence_piece({"a": 0.0})).vocab
    assert vocab.types[0] == TokenType.UNKNOWN
    found = SpecialSplitter(vocab)
    assert found.split("a<unk>", parse_special=True) == ["a", 0]
    assert found.split("a<unk>", parse_special=False) == ["a<unk>"]


def test_phi3_tokens_swallow_the_space_after_them() -> None:
    special = {"<|user|>": CONTROL, "<|end|>": CONTROL, "<|endoftext|>": CONTROL}
    keys = sentence_piece({"a": 0.0}, special=special)
    vocab = load_tokenizer({**keys, "general.name": "Phi-3 mini"}).vocab
    user, end, text_end = (vocab.ids[word] for word in special)
    found = SpecialSplitter(vocab)
    assert found.split("<|user|>\n\t a <|end|>\n<|user|>", parse_special=True) == [
        user,
        "a ",
        end,
        user,
    ]
    assert found.split("<|endoftext|> a", parse_special=True) == [text_end, " a"]


def test_mask_tokens_of_jina_swallow_the_space_before_them() -> None:
    keys = byte_level(special={"<mask>": CONTROL}, pre="jina-v2-de")
    vocab = load_tokenizer(keys).vocab
    pieces = SpecialSplitter(vocab).split("a \n<mask> b", parse_special=True)
    assert pieces == ["a", vocab.ids["<mask>"], " b"]


def test_thousands_of_special_tokens_cost_next_to_nothing() -> None:
    found = splitter(NUMBERED)
    text = "if x < 10 and y ~< 20:\n        return ~<unused17>\n" * 1000
    found.split(text, parse_special=True)
    start = time.thread_time()
    pieces = found.split(text, parse_special=True)
    assert sum(isinstance(piece, int) for piece in pieces) == 1000
    # A pass per token over 50 kB takes 30 ms at best even where each pass finds nothing.
    assert time.thread_time() - start < 0.03
