"""Streamed text equals whole text, and no half character is ever shown."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.tokenizer.stream_decoder import StreamDecoder

CUTS = st.lists(st.integers(0, 60), max_size=12)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(text=st.text(max_size=20), cuts=CUTS)
def test_text_comes_out_whole_however_it_is_cut(text: str, cuts: list[int]) -> None:
    decoder = StreamDecoder()
    shown = [decoder.push(piece) for piece in pieces(text.encode(), cuts)]
    assert "".join(shown) == text
    assert decoder.flush() == ""


@given(data=st.binary(max_size=40), cuts=CUTS)
def test_broken_bytes_give_the_same_as_decoding_them_at_once(data: bytes, cuts: list[int]) -> None:
    decoder = StreamDecoder()
    shown = "".join(decoder.push(piece) for piece in pieces(data, cuts))
    assert shown + decoder.flush() == data.decode("utf-8", "replace")


@given(st.text(min_size=1, max_size=6))
def test_what_was_shown_never_has_to_be_taken_back(text: str) -> None:
    decoder = StreamDecoder()
    shown = ""
    for byte in text.encode():
        shown += decoder.push(bytes([byte]))
        assert text.startswith(shown)


def test_an_unfinished_character_is_held_back_and_replaced_at_the_end() -> None:
    decoder = StreamDecoder()
    assert decoder.push("a👍".encode()[:-1]) == "a"
    assert decoder.held_back == "👍".encode()[:-1]
    assert decoder.flush() == "\ufffd"
    assert decoder.held_back == b""
    assert decoder.push("👍".encode()) == "👍"
