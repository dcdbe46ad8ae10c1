"""Made-up grammars: short, recursive, and ambiguous as often as not."""

import random
from typing import Final

_REPEATS: Final = ("*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}")


class GrammarMaker:
    """Makes grammars over the characters of an alphabet."""

    def __init__(self, rng: random.Random, alphabet: str) -> None:
        self._rng = rng
        self._alphabet = alphabet
        self._names = ["root", *["a", "b", "c", "d"][: rng.randint(0, 4)]]

    def grammar(self) -> str:
        return "\n".join(f"{name} ::= {self._choice(0)}" for name in self._names)

    def _choice(self, depth: int) -> str:
        n_items = self._rng.choice((1, 1, 2, 2, 3))
        return " | ".join(self._sequence(depth) for _ in range(n_items))

    def _sequence(self, depth: int) -> str:
        n_items = self._rng.choice((0, 1, 1, 2, 2, 3, 3) if depth else (1, 1, 2, 2, 3, 3))
        items = [self._item(depth) for _ in range(n_items)]
        # Beginning with a character keeps most grammars free of left recursion.
        if items and self._rng.random() < 0.9:
            items[0] = self._terminal() + self._rng.choice(("", "", "+", "{1,2}"))
        return " ".join(items)

    def _item(self, depth: int) -> str:
        repeat = self._rng.choice(_REPEATS) if self._rng.random() < 0.45 else ""
        return self._atom(depth) + repeat

    def _atom(self, depth: int) -> str:
        kind = self._rng.random()
        if kind < 0.55:
            return self._terminal()
        if kind < 0.6:
            return "."
        if kind < 0.85 or depth > 2:
            return self._rng.choice(self._names)
        return f"({self._choice(depth + 1)})"

    def _terminal(self) -> str:
        if self._rng.random() < 0.6:
            length = self._rng.randint(1, 3)
            return '"' + "".join(map(_escaped, self._rng.choices(self._alphabet, k=length))) + '"'
        n_chars = self._rng.randint(1, min(3, len(self._alphabet)))
        inner = "".join(map(_escaped, self._rng.sample(self._alphabet, n_chars)))
        negation = "^" if self._rng.random() < 0.25 else ""
        return f"[{negation}{'a-z' if self._rng.random() < 0.2 else inner}]"


def _escaped(char: str) -> str:
    return {"\\": "\\\\", '"': '\\"', "\n": "\\n", "^": "\\x5E"}.get(char, char)


def random_gbnf(seed: int, alphabet: str) -> str:
    return GrammarMaker(random.Random(seed), alphabet).grammar()
