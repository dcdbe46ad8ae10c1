"""Which parts of a grammar are regular, and how large they are with all rules written out."""

from typing import NamedTuple

from app.sampling.grammar import limits
from app.sampling.grammar.check import postorder
from app.sampling.grammar.tree import Node, Rule, Rules, children, references


class Measure(NamedTuple):
    """Number of nodes, and of levels."""

    size: int
    depth: int


class Measures:
    """The measures of the nodes of one grammar."""

    def __init__(self, rules: Rules, root: str) -> None:
        self._nodes: dict[Node, Measure | None] = {}
        self._rules: dict[str, Measure | None] = {}
        # Rules come after those that they mention, unless they are recursive.
        for name in postorder([root], lambda rule: references(rules[rule])):
            self._rules[name] = self.of(rules[name])

    def of(self, node: Node) -> Measure | None:
        """Return the measure of a node; None when it is recursive, or too large for one lexeme."""
        if isinstance(node, Rule):
            whole = self._rules.get(node.name)
            return whole if whole is None or whole.size <= limits.MAX_INLINED_SIZE else None
        if node not in self._nodes:
            self._nodes[node] = self._sum(node)
        return self._nodes[node]

    def _sum(self, node: Node) -> Measure | None:
        size, depth = 1, 0
        for item in children(node):
            inner = self.of(item)
            if inner is None:
                return None
            size += inner.size
            depth = max(depth, inner.depth)
        if size > limits.MAX_LEXEME_SIZE or depth >= limits.MAX_LEXEME_DEPTH:
            return None
        return Measure(size, depth + 1)
