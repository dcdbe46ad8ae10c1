"""A plain recogniser of grammars: every way to read a text is followed, nothing is cut or lexed."""

from app.sampling.grammar.tree import Chars, Choice, Node, Repeat, Rule, Rules, Sequence

Ends = frozenset[int]


class Recogniser:
    def __init__(self, rules: Rules, text: str) -> None:
        self._rules = rules
        self._text = text
        self._known: dict[tuple[str, int], Ends] = {}

    def ends(self, node: Node, at: int) -> Ends:
        """Where a match of the node that begins at a place can end."""
        match node:
            case Chars(ranges):
                fits = at < len(self._text) and any(
                    low <= ord(self._text[at]) <= high for low, high in ranges
                )
                return frozenset({at + 1} if fits else ())
            case Choice(items):
                return frozenset().union(*(self.ends(item, at) for item in items))
            case Sequence(items):
                places = frozenset({at})
                for item in items:
                    places = self._all(item, places)
                return places
            case Repeat(item, least, most):
                return self._repeated(item, least, most, frozenset({at}))
            case Rule(name):
                if (name, at) not in self._known:
                    self._known[name, at] = self.ends(self._rules[name], at)
                return self._known[name, at]

    def _all(self, item: Node, places: Ends) -> Ends:
        return frozenset().union(*(self.ends(item, place) for place in places))

    def _repeated(self, item: Node, least: int, most: int | None, places: Ends) -> Ends:
        for _ in range(least):
            places = self._all(item, places)
        found = places
        for _ in range(len(self._text) + 1 if most is None else most - least):
            places = self._all(item, places)
            found |= places
        return found


def recognises(rules: Rules, text: str) -> bool:
    return len(text) in Recogniser(rules, text).ends(rules["root"], 0)
