"""A grammar cut into lexemes → llguidance's variant of Lark.

Rules are called r0, r1 … and lexemes T0, T1 …; no name of the source gets through. Each node above
the lexemes gets a rule of its own, so that nothing nests.
"""

from typing import Final

from app.sampling.grammar import limits
from app.sampling.grammar.lexemes import LexemeCut
from app.sampling.grammar.tree import Chars, Choice, Node, Ranges, Repeat, Rule, Rules, Sequence

HEADER: Final = '%llguidance {"no_forcing": true}\n'
"""Any tokens that make up the text are allowed, not only those that its tokenizer would choose;
llama.cpp's grammars know no difference either."""


def write_lark(cut: LexemeCut, rules: Rules) -> str:
    """Return the Lark text of a grammar; `rules` are all its rules.

    Raises: RequestError when the lexemes are too large together.
    """
    return _Writer(cut, rules).text()


class _Writer:
    """Collects the definitions of one grammar."""

    def __init__(self, cut: LexemeCut, rules: Rules) -> None:
        self._cut = cut
        self._rules = rules
        self._above = cut.rules()
        self._rule_names = {name: f"r{i}" for i, name in enumerate(self._above)}
        self._names: dict[Node, str] = {}
        self._lines: list[str] = []
        self._size = 0

    def text(self) -> str:
        for name, body in self._above.items():
            self._lines.append(f"{self._rule_names[name]}: {self._name(body)}")
        start = f"start: {self._rule_names[self._cut.root]}"
        return HEADER + "\n".join([start, *self._lines]) + "\n"

    def _name(self, node: Node) -> str:
        """Return the name of what matches a node, defining it first if need be."""
        if isinstance(node, Rule):
            return self._rule_names[node.name]
        if node not in self._names:
            lexeme = self._cut.is_lexeme(node)
            definition = self._lexeme(node) if lexeme else self._structure(node)
            if len(self._names) >= limits.MAX_DEFINITIONS:
                raise limits.gbnf_refusal(
                    f"the grammar has more than {limits.MAX_DEFINITIONS} parts"
                )
            self._names[node] = f"{'T' if lexeme else 'n'}{len(self._names)}"
            self._lines.append(f"{self._names[node]}: {definition}")
        return self._names[node]

    def _structure(self, node: Node) -> str:
        match node:
            case Sequence(items):
                return " ".join(map(self._name, items)) or '""'
            case Choice(items):
                return " | ".join(map(self._name, items))
            case Repeat(item, least, most):
                return self._name(item) + _count(least, most)
            case _:
                raise AssertionError(f"{node} has no parts")

    def _lexeme(self, node: Node) -> str:
        self._size += self._cut.size(node)
        if self._size > limits.MAX_TOTAL_SIZE:
            raise limits.gbnf_refusal(
                f"the rules written out have more than {limits.MAX_TOTAL_SIZE} parts"
            )
        return f"/{self._regex(node)}/"

    def _regex(self, node: Node) -> str:
        match node:
            case Chars(ranges):
                return _char_class(ranges)
            case Rule(name):
                return self._regex(self._rules[name])
            case Sequence(items):
                return f"(?:{''.join(map(self._regex, items))})"
            case Choice(items):
                return f"(?:{'|'.join(map(self._regex, items))})"
            case Repeat(item, least, most):
                return f"(?:{self._regex(item)}){_count(least, most)}"


def _count(least: int, most: int | None) -> str:
    match least, most:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
    return f"{{{least},{'' if most is None else most}}}"


def _char_class(ranges: Ranges) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _char(ranges[0][0])
    parts = (_char(low) if low == high else f"{_char(low)}-{_char(high)}" for low, high in ranges)
    return f"[{''.join(parts)}]"


def _char(code_point: int) -> str:
    char = chr(code_point)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code_point:X}}}"
