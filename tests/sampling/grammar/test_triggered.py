"""A sleeping grammar wakes at its trigger, wherever tokens cut it, and not inside reasoning."""

import pytest

from app.sampling.grammar.matcher import GrammarEngine, TokenTable
from app.sampling.grammar.triggered import TriggeredConstraint, Watch

PIECES = ["<call>", "<ca", "ll>", "<call>x", " <", "call", ">", "x", "y", "a", "<t>", "</t>", "<"]
END = len(PIECES)
GRAMMAR = r"""%llguidance {"no_forcing": true}
start: (marked "x")+ ANY
marked[lazy]: ANY "<call>"
ANY: /(.|\n)*/
"""


def constraint(*, in_thought: bool = False) -> TriggeredConstraint:
    pieces = [piece.encode() for piece in PIECES] + [b""]
    inner = GrammarEngine(TokenTable(pieces, frozenset({END}))).constraint(GRAMMAR)
    watch = Watch(b"<call>", b"<t>", b"</t>", in_thought)
    return TriggeredConstraint(inner, watch, lambda token: pieces[token], len(pieces))


def follow(asleep: TriggeredConstraint, *texts: str) -> TriggeredConstraint:
    for text in texts:
        token = PIECES.index(text)
        assert asleep.allows(token)
        asleep.accept(token)
    return asleep


def is_bound(asleep: TriggeredConstraint) -> bool:
    """Whether only x may come next."""
    mask = asleep.mask()
    assert [asleep.allows(i) for i in range(len(mask))] == list(mask)
    return not asleep.allows(PIECES.index("y")) and asleep.allows(PIECES.index("x"))


@pytest.mark.parametrize(
    "texts",
    [["<call>"], ["a", "<ca", "ll>"], [" <", "call", ">"], ["y"] * 20 + ["<", "call", ">"]],
)
def test_it_wakes_however_the_trigger_is_cut(texts: list[str]) -> None:
    assert not is_bound(follow(constraint(), *texts[:-1]))
    assert is_bound(follow(constraint(), *texts))


def test_a_token_may_hold_the_trigger_and_more() -> None:
    awake = follow(constraint(), "a", "<call>x")
    assert not is_bound(awake)
    assert awake.allows(END)
    assert is_bound(follow(awake, "y", "<call>"))


def test_reasoning_is_not_looked_into() -> None:
    assert not is_bound(follow(constraint(), "<t>", "<call>"))
    assert is_bound(follow(constraint(), "<t>", "<call>", "</t>", "<call>"))
    assert not is_bound(follow(constraint(in_thought=True), "<call>"))
    assert is_bound(follow(constraint(in_thought=True), "a", "</t>", "<call>"))
    assert is_bound(follow(constraint(), "<call>", "x", "<t>", "<call>")), "it is awake by then"


def test_copies_go_their_own_way_and_a_reset_one_sleeps() -> None:
    asleep = follow(constraint(), "<ca")
    copy = asleep.clone()
    follow(copy, "ll>")
    assert is_bound(copy) and not is_bound(asleep)
    copy.reset()
    assert not is_bound(follow(copy, "ll>"))
