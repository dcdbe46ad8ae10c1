"""Where a grammar is cut into lexemes, so that a lexer that always takes the longest match still
follows it exactly.

llguidance runs a lexer under its parser: a lexeme is a regular expression, and the longest match
wins, as in a programming language. GBNF has no lexer. The cut starts with the largest parts that
are regular; a lexeme that could swallow text that belongs to what comes after is taken apart, in
the end into single characters, for which the longest match is the only one. Large lexemes are fast
and single characters slow, so only what clashes is taken apart.

Longest match is exact when no lexeme, at a place where another has just been matched, can go on
with a character that can also come after that other one.
"""

from collections.abc import Iterator
from typing import Final

from app.sampling.grammar.clashes import clashing_lexemes
from app.sampling.grammar.measure import Measures
from app.sampling.grammar.positions import Budget, OutOfBudgetError
from app.sampling.grammar.tree import EMPTY, Chars, Node, Rule, Rules, children

_STEPS: Final = 500_000
_ROUNDS: Final = 30


class LexemeCut:
    """The rules of a grammar and which nodes of them are lexemes."""

    def __init__(self, rules: Rules, root: str) -> None:
        self._all = rules
        self.root = root
        self._split: set[Node] = set()
        self._only_chars = False
        self._measures = Measures(rules, root)
        try:
            self._settle(Budget(_STEPS))
        except OutOfBudgetError:
            self._only_chars = True

    def is_lexeme(self, node: Node) -> bool:
        """Return whether the node is a lexeme, rather than made of some."""
        if isinstance(node, Chars):
            return True
        if self._only_chars or node is EMPTY or isinstance(node, Rule) or node in self._split:
            return False
        return self._measures.of(node) is not None

    def rules(self) -> dict[str, Node]:
        """Return the rules above the lexemes, the root first."""
        found: dict[str, Node] = {}
        waiting = [self.root]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = self._all[name]
                parts = self.parts(found[name])
                waiting.extend(part.name for part in parts if isinstance(part, Rule))
        return found

    def size(self, lexeme: Node) -> int:
        """Return the number of nodes in a lexeme, rules written out."""
        measure = self._measures.of(lexeme)
        assert measure is not None
        return measure.size

    def parts(self, body: Node) -> Iterator[Node]:
        """Yield the lexemes of a rule, and what holds them together."""
        stack = [body]
        while stack:
            node = stack.pop()
            yield node
            if not self.is_lexeme(node):
                stack.extend(reversed(children(node)))

    def _settle(self, budget: Budget) -> None:
        """Take lexemes apart until none clash."""
        if self.is_lexeme(self._all[self.root]):
            return
        for _ in range(_ROUNDS):
            above = self.rules()
            lexemes = [p for body in above.values() for p in self.parts(body) if self.is_lexeme(p)]
            clashing = clashing_lexemes(lexemes, above, self._all, self.root, budget)
            if not clashing:
                return
            self._split.update(clashing)
        self._only_chars = True
