"""Which lexemes would swallow text that belongs to what comes after another: see `lexemes`.

Two lexemes meet when they can come at the same place: both begin the text, or both come after the
same lexeme. Lexemes that can match the same text (a keyword and a name) are followed as one, since
after such a text the parser is in both places.
"""

from collections.abc import Iterator, Sequence

from app.sampling.grammar.flow import Flow
from app.sampling.grammar.positions import Automaton, Budget, Meeting, build_automaton, meeting
from app.sampling.grammar.tree import Node, Rules, meet, union


def clashing_lexemes(
    lexemes: Sequence[Node], above: Rules, rules: Rules, root: str, budget: Budget
) -> set[Node]:
    """Return the lexemes that must be taken apart: those that can go on where another one ends.

    `above` are the rules made of lexemes, `rules` all of them. Raises: OutOfBudgetError.
    """
    numbers = {node: number for number, node in enumerate(dict.fromkeys(lexemes))}
    automata = [build_automaton(node, rules, budget) for node in numbers]
    if all(automaton.is_single for automaton in automata):
        return set()
    flow = Flow(above, root, numbers, lambda number: automata[number].nullable, budget)
    found = _Clashes(automata, flow, budget).numbers()
    return {node for node, number in numbers.items() if number in found}


class _Clashes:
    """The comparison of all lexemes of one cut."""

    def __init__(self, automata: Sequence[Automaton], flow: Flow, budget: Budget) -> None:
        self._automata = automata
        self._flow = flow
        self._budget = budget
        self._first = [automaton.first_chars for automaton in automata]
        self._chars = [automaton.all_chars for automaton in automata]
        self._meetings: dict[tuple[int, int], Meeting] = {}
        self._class = list(range(len(automata)))

    def numbers(self) -> set[int]:
        """Return the numbers of the lexemes that clash with some other, or with themselves."""
        pairs: set[tuple[int, int]] = set()
        while True:
            for place in self._places():
                pairs.update(self._overlapping(place))
            ties = [(a, b) for a, b in pairs if a != b and self._meeting(a, b).tie]
            ties = [pair for pair in ties if self._merge(*pair)]
            if not ties:
                return {b for a, b in pairs if self._clash(a, b)}

    def _places(self) -> set[int]:
        """The sets of lexemes that may come at one place."""
        after = [0] * len(self._automata)
        for number, follow in enumerate(self._flow.follow):
            after[self._root(number)] |= follow
        return {self._flow.start, *after}

    def _overlapping(self, place: int) -> Iterator[tuple[int, int]]:
        """The pairs, each both ways and each lexeme with itself, that begin with a common
        character.
        """
        ranges = sorted(
            (low, high, number) for number in _bits(place) for low, high in self._first[number]
        )
        active: list[tuple[int, int]] = []
        for low, high, number in ranges:
            active = [entry for entry in active if entry[0] >= low]
            active.append((high, number))
            self._budget.spend(len(active))
            for _, other in active:
                yield number, other
                yield other, number

    def _meeting(self, a: int, b: int) -> Meeting:
        known = self._meetings.get((a, b))
        if known is None:
            known = meeting(self._automata[a], self._automata[b], self._budget)
            self._meetings[a, b] = known
        return known

    def _clash(self, a: int, b: int) -> bool:
        """Whether the second can go on with what can come after the first."""
        following = _bits(self._flow.follow[a])
        after = union(pair for other in following for pair in self._first[other])
        # Most lexemes hold nothing of what comes after them, and need not be followed.
        return meet(after, self._chars[b]) and meet(after, self._meeting(a, b).goes_on)

    def _root(self, number: int) -> int:
        while self._class[number] != number:
            number = self._class[number]
        return number

    def _merge(self, a: int, b: int) -> bool:
        """Put two lexemes into one class; return whether they were in two."""
        first, second = self._root(a), self._root(b)
        self._class[second] = first
        return first != second


def _bits(numbers: int) -> Iterator[int]:
    while numbers:
        low = numbers & -numbers
        yield low.bit_length() - 1
        numbers ^= low
