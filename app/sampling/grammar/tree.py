"""What a grammar consists of: nodes over code points, and sets of code points.

A `Pool` makes the nodes, and equal nodes only once: they are compared and hashed by identity, which
takes the same time for large ones, and equal parts of a grammar become one lexeme. Surrogates
belong to no set, because no UTF-8 text holds them.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

MAX_CODE_POINT: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)

Ranges = tuple[tuple[int, int], ...]
"""Inclusive ranges of code points, ascending, neither touching nor overlapping."""


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One code point out of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One after the other; without items the empty text."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One of several."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """`item` from `least` to `most` times; None is without limit."""

    item: "Node"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """What the rule of that name says."""

    name: str


Node = Chars | Sequence | Choice | Repeat | Rule
Rules = Mapping[str, Node]

EMPTY: Final = Sequence(())


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes right below, without following rules."""
    match node:
        case Sequence(items) | Choice(items):
            return items
        case Repeat(item):
            return (item,)
        case _:
            return ()


def references(node: Node) -> Iterator[str]:
    """Yield the names of the rules that the node mentions, in order."""
    stack = [node]
    while stack:
        top = stack.pop()
        if isinstance(top, Rule):
            yield top.name
        else:
            inner = [item for item in children(top) if not isinstance(item, Chars)]
            stack.extend(reversed(inner))


class Pool:
    """The nodes of one grammar."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Hashable, Node] = {}

    def chars(self, ranges: Ranges) -> Node:
        """Return the node for one code point out of a set."""
        return self._once((Chars, ranges), Chars(ranges))

    def rule(self, name: str) -> Node:
        """Return the node that mentions a rule."""
        return self._once((Rule, name), Rule(name))

    def repeat(self, item: Node, least: int, most: int | None) -> Node:
        """Return the node for a repetition; none at all is the empty text."""
        if most == 0:
            return EMPTY
        return self._once((Repeat, item, least, most), Repeat(item, least, most))

    def sequence(self, items: Iterable[Node]) -> Node:
        """Return a sequence, or its only item; empty texts are left out."""
        parts = tuple(item for item in items if item is not EMPTY)
        if not parts:
            return EMPTY
        return parts[0] if len(parts) == 1 else self._once((Sequence, parts), Sequence(parts))

    def choice(self, items: Iterable[Node]) -> Node:
        """Return a choice, or its only item; equal items count once."""
        parts = tuple(dict.fromkeys(items))
        return parts[0] if len(parts) == 1 else self._once((Choice, parts), Choice(parts))

    def _once(self, key: Hashable, node: Node) -> Node:
        return self._known.setdefault(key, node)


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges in any order as a set, surrogates taken out."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(_without_surrogates(ranges)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    first, last = _SURROGATES
    for low, high in ranges:
        if low < first:
            yield low, min(high, first - 1)
        if high > last:
            yield max(low, last + 1), high


def complement(ranges: Ranges) -> Ranges:
    """Return all code points that are not in the set."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        gaps.append((start, MAX_CODE_POINT))
    return union(gaps)


def meet(left: Ranges, right: Ranges) -> bool:
    """Return whether the sets have a code point in common."""
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i][1] < right[j][0]:
            i += 1
        elif right[j][1] < left[i][0]:
            j += 1
        else:
            return True
    return False
