"""Ends a model's reasoning after a number of tokens by choosing the tokens that end it.

Belongs to one sequence. Reasoning is found in the text, so it is found however tokens cut its
marks. See common/reasoning-budget.cpp in llama.cpp.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """What begins and what ends reasoning, and the tokens that are chosen to end it."""

    start: bytes
    end: bytes
    closing: Sequence[int]


@dataclass(slots=True)
class ReasoningBudget:
    """Counts the tokens of reasoning; `thinks` says that the prompt began it."""

    limit: int
    marks: ReasoningMarks
    piece: Callable[[int], bytes]
    thinks: bool
    _n_tokens: int = 0
    _tail: bytes = b""
    _forced: deque[int] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._close_at_limit()

    def forced(self) -> int | None:
        """Return the token that must come next, if reasoning is to end now."""
        return self._forced[0] if self._forced else None

    def accept(self, token: int) -> None:
        """Follow a token."""
        if self._forced and self._forced[0] == token:
            self._forced.popleft()
        self._tail += self.piece(token)
        self._n_tokens += self.thinks
        mark = self.marks.end if self.thinks else self.marks.start
        if mark in self._tail:
            self._tail = self._tail[self._tail.index(mark) + len(mark) :]
            self.thinks = not self.thinks
            self._n_tokens = 0
        self._tail = self._tail[-len(self.marks.start + self.marks.end) :]
        if not self._forced:
            self._close_at_limit()

    def _close_at_limit(self) -> None:
        if self.thinks and self._n_tokens >= self.limit:
            self._forced.extend(self.marks.closing)
