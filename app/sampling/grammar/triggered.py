"""A grammar that sleeps until its trigger is written.

Until then everything is allowed. The trigger is looked for in the text, so it is found however
tokens cut it, but not inside reasoning. From the token on in which it begins, tokens go to the
grammar; one that does not fit the grammar's beginning puts it to sleep for good, for what a model
has written already cannot be constrained.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from app.sampling.constraint import Constraint, Mask


@dataclass(frozen=True, slots=True)
class Watch:
    """What to look for; see `app.engine.request.Trigger`."""

    word: bytes
    thought_start: bytes
    thought_end: bytes
    in_thought: bool


@dataclass(slots=True)
class TriggeredConstraint:
    """Fits `app.sampling.constraint.Constraint`; `pieces` gives the bytes of a token."""

    _inner: Constraint
    _watch: Watch
    _pieces: Callable[[int], bytes]
    _n_vocab: int
    _awake: bool = False
    _thinks: bool = field(init=False)
    _gave_up: bool = False
    _tail: bytes = b""
    _recent: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._thinks = self._watch.in_thought

    def allows(self, token: int) -> bool:
        """Return whether the text may go on with this token."""
        return not self._awake or self._inner.allows(token)

    def mask(self) -> Mask:
        """Return for each token (n_vocab,) whether the text may go on with it."""
        return self._inner.mask() if self._awake else np.ones(self._n_vocab, dtype=np.bool_)

    def accept(self, token: int) -> None:
        """Follow a token."""
        if self._awake:
            self._inner.accept(token)
        elif not self._gave_up:
            self._look_at(token)

    def reset(self) -> None:
        """Go back to the start."""
        self._inner.reset()
        self._awake = self._gave_up = False
        self._thinks = self._watch.in_thought
        self._tail = b""
        self._recent = []

    def clone(self) -> "TriggeredConstraint":
        """Return an independent copy."""
        copy = TriggeredConstraint(self._inner.clone(), self._watch, self._pieces, self._n_vocab)
        copy._awake, copy._thinks, copy._gave_up = self._awake, self._thinks, self._gave_up
        copy._tail, copy._recent = self._tail, [*self._recent]
        return copy

    def _look_at(self, token: int) -> None:
        self._tail += self._pieces(token)
        self._recent.append(token)
        while self._step_over_thought():
            pass
        at = -1 if self._thinks else self._tail.find(self._watch.word)
        if at >= 0:
            self._wake(at)
        else:
            self._forget()

    def _step_over_thought(self) -> bool:
        """Leave or enter reasoning, if the text has that now; return whether it had."""
        watch = self._watch
        mark = watch.thought_end if self._thinks else watch.thought_start
        at = self._tail.find(mark) if mark else -1
        if at < 0 or (not self._thinks and 0 <= self._tail.find(watch.word) < at):
            return False
        self._tail = self._tail[at + len(mark) :]
        self._thinks = not self._thinks
        return True

    def _wake(self, at: int) -> None:
        """Let the grammar read the tokens from the one on that holds the byte at `at`."""
        start, n_bytes = len(self._recent), 0
        while start and n_bytes < len(self._tail) - at:
            start -= 1
            n_bytes += len(self._pieces(self._recent[start]))
        for token in self._recent[start:]:
            if not self._inner.allows(token):
                self._gave_up = True
                return
            self._inner.accept(token)
        self._awake = True
        self._recent = []

    def _forget(self) -> None:
        """Keep only what a mark could begin in."""
        watch = self._watch
        longest = max(map(len, (watch.word, watch.thought_start, watch.thought_end)))
        self._tail = self._tail[-longest:]
        self._recent = self._recent[-longest:]
