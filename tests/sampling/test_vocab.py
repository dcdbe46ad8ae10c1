"""Sequence breakers become token sequences."""

import pytest

from app.sampling.vocab import BreakerIndex
from tests.sampling.fake_vocab import FakeVocab

PIECES = (b"a", b"b", b"c", b"ab", b"xa", b"abc", b"\n", b"a\n", b"", b"bca")
INDEX = BreakerIndex(FakeVocab(PIECES))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n", {6: {()}, 7: {()}}),
        # inside "abc"; begun by "a", "xa" and "bca" (then b c), and by "ab" (then c)
        ("abc", {5: {()}, 0: {(1, 2)}, 4: {(1, 2)}, 9: {(1, 2)}, 3: {(2,)}}),
        ("aa", {0: {(0,)}, 4: {(0,)}, 9: {(0,)}}),
        ("zz", {}),
        ("", {}),
    ],
)
def test_tokens_that_hold_or_begin_the_text(
    text: str, expected: dict[int, set[tuple[int, ...]]]
) -> None:
    assert INDEX.breakers([text]) == {t: frozenset(tails) for t, tails in expected.items()}


def test_a_token_may_begin_the_text_in_two_ways() -> None:
    index = BreakerIndex(FakeVocab((b"xaa", b"a", b"b")))
    assert index.breakers(["aab"])[0] == {(1, 2), (2,)}


def test_breakers_are_united() -> None:
    index = BreakerIndex(FakeVocab((b"xa", b"a", b"b", b"c")))
    both = index.breakers(["ab", "ac"])
    assert both == {0: {(2,), (3,)}, 1: {(2,), (3,)}}


def test_a_long_breaker_is_cut() -> None:
    index = BreakerIndex(FakeVocab((b"a", b"b")))
    assert index.breakers(["a" * 40 + "b"]) == index.breakers(["a" * 40])
    assert {len(tail) for tail in index.breakers(["a" * 40])[0]} == {20}


def test_pieces_are_read_once() -> None:
    class Counting(FakeVocab):
        reads = 0

        def piece(self, token: int) -> bytes:
            Counting.reads += 1
            return super().piece(token)

    index = BreakerIndex(Counting(PIECES))
    index.breakers(["a", "b"])
    index.breakers(["c"])
    assert Counting.reads == len(PIECES)
