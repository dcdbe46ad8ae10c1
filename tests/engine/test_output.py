"""Text that is shown: stop strings and characters, however the tokens cut them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.engine.output import LineLimits, TextAssembler


def shown(pieces: list[bytes], stop: list[str]) -> tuple[str, str | None]:
    assembler = TextAssembler(stop)
    text = ""
    for piece in pieces:
        step = assembler.add(piece)
        text += step.text
        if step.stopped_by is not None:
            return text, step.stopped_by
    return text + assembler.finish(), None


def test_a_stop_string_cut_by_tokens_never_shows() -> None:
    assert shown([b"Hello ", b"<", b"en", b"d> more"], ["<end>"]) == ("Hello ", "<end>")


def test_text_that_only_began_a_stop_string_is_shown_in_the_end() -> None:
    assert shown([b"a <", b"en", b"x"], ["<end>"]) == ("a <enx", None)
    assert shown([b"a <en"], ["<end>"]) == ("a <en", None)


def test_the_first_of_several_stop_strings_wins() -> None:
    assert shown([b"one two three"], ["three", "two"]) == ("one ", "two")


def test_a_character_cut_by_tokens_is_held_until_it_is_whole() -> None:
    assembler = TextAssembler([])
    thumb = "👍".encode()
    first = assembler.add(thumb[:2])
    assert (first.text, first.is_whole) == ("", False)
    second = assembler.add(thumb[2:])
    assert (second.text, second.is_whole) == ("👍", True)


def test_a_broken_character_at_the_end_shows_as_a_replacement() -> None:
    assert shown([b"ok", "👍".encode()[:3]], []) == ("ok\ufffd", None)


@given(
    st.text(st.sampled_from("ab<>é👍"), max_size=30),
    st.lists(st.text(st.sampled_from("ab<é"), min_size=1, max_size=3), max_size=3),
    st.data(),
)
def test_the_shown_text_is_the_text_before_the_first_stop_string(
    text: str, stop: list[str], data: st.DataObject
) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    borders = [0, *cuts, len(raw)]
    pieces = [raw[a:b] for a, b in pairwise(borders)]
    got, word = shown(pieces, stop)
    if word is None:
        assert got == text
        assert not any(s in text for s in stop)
    else:
        assert text.startswith(got + word)
        assert not any(s in got for s in stop)


def test_indentation_limit_ends_at_a_line_that_starts_too_far_left() -> None:
    limits = LineLimits(n_indent=4, t_max_predict_ms=-1)
    assert not limits.add("if x:\n", 0)
    assert not limits.add("    deep\n  ", 0)
    assert limits.add("shallow", 0)


def test_time_limit_only_bites_at_a_new_line() -> None:
    limits = LineLimits(n_indent=0, t_max_predict_ms=10)
    assert not limits.add("long", 50)
    assert limits.add("end\n", 50)
    assert limits.has_new_line
