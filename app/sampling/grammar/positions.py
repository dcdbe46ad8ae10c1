"""What a lexeme can match, as an automaton over its character sets, and how two lexemes meet.

The construction is Glushkov's: a state is a position, that is, one occurrence of a character set. A
bounded repetition counts as an unbounded one; the automaton then accepts more than the lexeme, and
every answer here errs towards "they clash".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from app.sampling.grammar.tree import (
    Chars,
    Choice,
    Node,
    Ranges,
    Repeat,
    Rule,
    Rules,
    Sequence,
    union,
)


@dataclass(frozen=True, slots=True)
class Automaton:
    """`first` are the positions that a match begins with, `last` those that it can end with, and
    `follow[p]` those that can come after p.
    """

    chars: list[Ranges]
    first: frozenset[int]
    last: frozenset[int]
    follow: list[set[int]]
    nullable: bool

    @property
    def first_chars(self) -> Ranges:
        """Return what a match can begin with."""
        return self.chars_of(self.first)

    @property
    def all_chars(self) -> Ranges:
        """Return what a match can hold."""
        return self.chars_of(range(len(self.chars)))

    @property
    def is_single(self) -> bool:
        """Return whether every match is one character, or none."""
        return not any(self.follow)

    def chars_of(self, positions: Iterable[int]) -> Ranges:
        """Return the union of the character sets at positions."""
        return union({pair for position in positions for pair in self.chars[position]})


class OutOfBudgetError(Exception):
    """The analysis would take too long; the caller goes without it."""


class Budget:
    """Steps that an analysis may still take."""

    __slots__ = ("_left",)

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Take steps away. Raises: OutOfBudgetError when there are none left."""
        self._left -= steps
        if self._left < 0:
            raise OutOfBudgetError


class _Part(NamedTuple):
    first: frozenset[int]
    last: frozenset[int]
    nullable: bool


Positions = frozenset[int]
_NOTHING: Final[Positions] = frozenset()


class _Builder:
    """Numbers the positions of a node, rules written out, and links them."""

    def __init__(self, rules: Rules, budget: Budget) -> None:
        self._rules = rules
        self._budget = budget
        self.chars: list[Ranges] = []
        self.follow: list[set[int]] = []

    def build(self, node: Node) -> _Part:
        match node:
            case Chars(ranges):
                self.chars.append(ranges)
                self.follow.append(set())
                here = frozenset((len(self.chars) - 1,))
                return _Part(here, here, False)
            case Rule(name):
                return self.build(self._rules[name])
            case Choice(items):
                parts = [self.build(item) for item in items]
                return _Part(
                    _NOTHING.union(*(part.first for part in parts)),
                    _NOTHING.union(*(part.last for part in parts)),
                    any(part.nullable for part in parts),
                )
            case Repeat(item, least, most):
                part = self.build(item)
                if most != 1:
                    self._link(part.last, part.first)
                return part._replace(nullable=part.nullable or least == 0)
            case Sequence(items):
                return self._in_turn(items)

    def _in_turn(self, items: tuple[Node, ...]) -> _Part:
        whole = _Part(_NOTHING, _NOTHING, True)
        for item in items:
            part = self.build(item)
            self._link(whole.last, part.first)
            whole = _Part(
                whole.first | part.first if whole.nullable else whole.first,
                whole.last | part.last if part.nullable else part.last,
                whole.nullable and part.nullable,
            )
        return whole

    def _link(self, before: frozenset[int], after: frozenset[int]) -> None:
        self._budget.spend(1 + len(before) * len(after))
        for position in before:
            self.follow[position].update(after)


def build_automaton(node: Node, rules: Rules, budget: Budget) -> Automaton:
    """Return the automaton of a node that is not recursive. Raises: OutOfBudgetError."""
    builder = _Builder(rules, budget)
    first, last, nullable = builder.build(node)
    return Automaton(builder.chars, first, last, builder.follow, nullable)


class Meeting(NamedTuple):
    """How two lexemes that may come at the same place relate.

    `tie`: some text is a match of both. `goes_on`: the characters with which the second can go on
    after a text that is a match of the first.
    """

    tie: bool
    goes_on: Ranges


def meeting(first: Automaton, second: Automaton, budget: Budget) -> Meeting:
    """Follow all texts that both lexemes can begin with.

    Raises: OutOfBudgetError.
    """
    tie = False
    goes_on = _NOTHING
    start = (first.first, second.first)
    seen = {start}
    waiting = [start]
    while waiting:
        expected = waiting.pop()
        for reached in _common_steps(first, second, expected, budget):
            going = _after(second, reached[1])
            if reached[0] & first.last:
                tie = tie or bool(reached[1] & second.last)
                goes_on |= going
            following = (_after(first, reached[0]), going)
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return Meeting(tie, second.chars_of(goes_on))


def _after(automaton: Automaton, positions: frozenset[int]) -> frozenset[int]:
    return _NOTHING.union(*(automaton.follow[position] for position in positions))


def _common_steps(
    first: Automaton, second: Automaton, expected: tuple[Positions, Positions], budget: Budget
) -> set[tuple[Positions, Positions]]:
    """The positions that are reached with one more character, for each character that fits some
    expected position of both lexemes.
    """
    edges: list[tuple[int, bool, int, int]] = []
    for side, automaton in enumerate((first, second)):
        for position in expected[side]:
            for low, high in automaton.chars[position]:
                edges.append((low, True, side, position))
                edges.append((high + 1, False, side, position))
    budget.spend(len(edges))
    edges.sort()
    open_now: tuple[set[int], set[int]] = (set(), set())
    steps: set[tuple[Positions, Positions]] = set()
    for i, (place, opens, side, position) in enumerate(edges):
        if opens:
            open_now[side].add(position)
        else:
            open_now[side].discard(position)
        is_last_here = i + 1 == len(edges) or edges[i + 1][0] != place
        if is_last_here and open_now[0] and open_now[1]:
            budget.spend(len(open_now[0]) + len(open_now[1]))
            steps.add((frozenset(open_now[0]), frozenset(open_now[1])))
    return steps
