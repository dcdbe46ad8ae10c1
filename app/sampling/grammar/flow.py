"""Which lexemes a text can begin with, and which can come after which: FIRST and FOLLOW.

Sets of lexemes are integers, bit i for lexeme i. The sets hold for the grammar as a whole, not for
one place in it, so they may be too large and are never too small.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from app.sampling.grammar.check import postorder
from app.sampling.grammar.positions import Budget
from app.sampling.grammar.tree import Choice, Node, Repeat, Rule, Rules, Sequence, references


class _Start(NamedTuple):
    lexemes: int
    nullable: bool


class Flow:
    """FIRST and FOLLOW of the rules that are not lexemes themselves."""

    def __init__(
        self,
        rules: Rules,
        root: str,
        numbers: Mapping[Node, int],
        nullable: Callable[[int], bool],
        budget: Budget,
    ) -> None:
        """`numbers` are the lexemes; `nullable` says of one whether it matches the empty text.

        Raises: OutOfBudgetError.
        """
        self._rules = rules
        self._numbers = numbers
        self._nullable = nullable
        self._budget = budget
        self._starts = dict.fromkeys(rules, _Start(0, False))
        self._after_rule = dict.fromkeys(rules, 0)
        self.follow = [0] * len(numbers)
        order = postorder([root], lambda name: [n for n in references(rules[name]) if n in rules])
        self._settle_starts(order)
        self._settle_follow(order[::-1])
        self.start = self._starts[root].lexemes

    def _settle_starts(self, order: list[str]) -> None:
        changed = True
        while changed:
            changed = False
            for name in order:
                start = self._start(self._rules[name])
                changed |= start != self._starts[name]
                self._starts[name] = start

    def _settle_follow(self, order: list[str]) -> None:
        done: dict[str, int] = {}
        while done != self._after_rule:
            for name in order:
                after = self._after_rule[name]
                if done.get(name) != after:
                    done[name] = after
                    self._push(self._rules[name], after)

    def _start(self, node: Node) -> _Start:
        self._budget.spend(1)
        number = self._numbers.get(node)
        if number is not None:
            return _Start(1 << number, self._nullable(number))
        match node:
            case Rule(name):
                return self._starts[name]
            case Repeat(item, least, _):
                inner = self._start(item)
                return inner._replace(nullable=inner.nullable or least == 0)
            case Choice(items):
                starts = [self._start(item) for item in items]
                lexemes = 0
                for start in starts:
                    lexemes |= start.lexemes
                return _Start(lexemes, any(start.nullable for start in starts))
            case Sequence(items):
                lexemes = 0
                for item in items:
                    start = self._start(item)
                    lexemes |= start.lexemes
                    if not start.nullable:
                        return _Start(lexemes, False)
                return _Start(lexemes, True)
            case _:
                raise AssertionError(f"{node} is neither a lexeme nor has parts")

    def _push(self, node: Node, after: int) -> None:
        """Take in that the lexemes `after` can come after the node."""
        self._budget.spend(1)
        number = self._numbers.get(node)
        if number is not None:
            self.follow[number] |= after
            return
        match node:
            case Rule(name):
                self._after_rule[name] |= after
            case Repeat(item, _, most):
                self._push(item, after if most == 1 else after | self._start(item).lexemes)
            case Choice(items):
                for item in items:
                    self._push(item, after)
            case Sequence(items):
                for item in reversed(items):
                    self._push(item, after)
                    start = self._start(item)
                    after = start.lexemes | (after if start.nullable else 0)
            case _:
                raise AssertionError(f"{node} is neither a lexeme nor has parts")
