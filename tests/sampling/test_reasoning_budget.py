"""Reasoning ends after its number of tokens, and only reasoning counts."""

from app.sampling.reasoning_budget import ReasoningBudget, ReasoningMarks

PIECES = [b"a", b"<t", b">", b"</t>", b"b", b"b<t>"]
A, OPEN, CLOSE, END, B, BOTH = range(6)
MARKS = ReasoningMarks(b"<t>", b"</t>", (B, END))


def budget(limit: int, *, thinks: bool = False) -> ReasoningBudget:
    return ReasoningBudget(limit, MARKS, PIECES.__getitem__, thinks)


def run(limited: ReasoningBudget, wanted: list[int]) -> list[int]:
    """Return the tokens of a model that wants these, where it is let."""
    told = []
    for token in wanted:
        while (forced := limited.forced()) is not None:
            limited.accept(forced)
            told.append(forced)
        limited.accept(token)
        told.append(token)
    return told


def test_nothing_is_forced_outside_reasoning() -> None:
    assert run(budget(0), [A, B, A, OPEN, A]) == [A, B, A, OPEN, A]


def test_no_reasoning_at_all() -> None:
    assert run(budget(0, thinks=True), [A, A]) == [B, END, A, A]
    assert run(budget(0), [A, OPEN, CLOSE, A]) == [A, OPEN, CLOSE, B, END, A]


def test_reasoning_ends_after_its_tokens() -> None:
    assert run(budget(2, thinks=True), [A, A, A]) == [A, A, B, END, A]
    assert run(budget(2), [BOTH, A, A, A]) == [BOTH, A, A, B, END, A]


def test_reasoning_that_ends_in_time_is_let_alone_and_the_next_counts_anew() -> None:
    wanted = [A, END, A, A, A, BOTH, A, A, A]
    assert run(budget(2, thinks=True), wanted) == [*wanted[:8], B, END, A]
