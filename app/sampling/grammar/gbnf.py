"""GBNF, llama.cpp's grammar language: text → rules.

Written after the behaviour of llama.cpp's src/llama-grammar.cpp. Differences on purpose: a rule
that is defined twice, an empty character class and a reversed range are refused instead of being
taken for something else; counts up to MAX_MOST_REPEATS are kept, where llama.cpp drops the upper
bound above 2000. References to tokens, `<[id]>` and `<text>`, are refused.
"""

from collections.abc import Iterable
from typing import Final

from app.sampling.grammar import limits
from app.sampling.grammar.cursor import Cursor
from app.sampling.grammar.tree import (
    MAX_CODE_POINT,
    Node,
    Pool,
    Rules,
    complement,
    union,
)

_ANY: Final = union([(0, MAX_CODE_POINT)])
_COUNTS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse_gbnf(source: str, pool: Pool) -> Rules:
    """Return the rules of a grammar by name, in the order of the source, made of nodes from `pool`.

    Raises: RequestError naming line and column.
    """
    if len(source) > limits.MAX_GBNF_CHARS:
        raise limits.gbnf_refusal(
            f"{len(source)} characters of GBNF, expected at most {limits.MAX_GBNF_CHARS}"
        )
    return _Parser(source, pool).rules()


class _Parser:
    """One reading of one source."""

    def __init__(self, source: str, pool: Pool) -> None:
        self._cursor = Cursor(source)
        self._pool = pool
        self._depth = 0
        self._single: dict[int, Node] = {}

    def rules(self) -> Rules:
        found: dict[str, Node] = {}
        cursor = self._cursor
        cursor.skip_blanks(newlines=True)
        while cursor.peek():
            start = cursor.at
            name, body = self._rule()
            if name in found:
                raise cursor.error(f"rule {name!r} is defined twice", start)
            found[name] = body
            if len(found) > limits.MAX_RULES:
                raise cursor.error(f"more than {limits.MAX_RULES} rules", start)
        return found

    def _rule(self) -> tuple[str, Node]:
        cursor = self._cursor
        name = cursor.name()
        cursor.skip_blanks(newlines=False)
        cursor.expect("::=")
        cursor.skip_blanks(newlines=True)
        body = self._alternatives(nested=False)
        if cursor.peek() not in ("", "\r", "\n"):
            raise cursor.error(f"expected the end of the line, got {cursor.shown()}")
        cursor.skip_blanks(newlines=True)
        return name, body

    def _alternatives(self, *, nested: bool) -> Node:
        found = [self._sequence(nested=nested)]
        while self._cursor.take("|"):
            self._cursor.skip_blanks(newlines=True)
            found.append(self._sequence(nested=nested))
        return self._pool.choice(found)

    def _sequence(self, *, nested: bool) -> Node:
        cursor = self._cursor
        items: list[Node] = []
        while (item := self._item()) is not None:
            cursor.skip_blanks(newlines=nested)
            items.append(self._repeated(item, nested=nested))
        if cursor.peek() and cursor.peek() in "*+?{":
            raise cursor.error("expected something to repeat before this")
        return self._pool.sequence(items)

    def _repeated(self, item: Node, *, nested: bool) -> Node:
        """Read the repetition signs after an item."""
        for _ in range(limits.MAX_SIGNS + 1):
            count = self._count(nested=nested)
            if count is None:
                return item
            item = self._pool.repeat(item, *count)
        raise self._cursor.error(f"more than {limits.MAX_SIGNS} repetition signs on one item")

    def _item(self) -> Node | None:
        cursor = self._cursor
        if cursor.take('"'):
            return self._literal()
        if cursor.take("["):
            return self._char_class()
        if cursor.take("("):
            return self._group()
        if cursor.take("."):
            return self._pool.chars(_ANY)
        if cursor.at_name():
            return self._pool.rule(cursor.name())
        if cursor.peek() and cursor.peek() in "<!":
            raise cursor.error("references to tokens (<[id]>, <text>, !<text>) are not supported")
        return None

    def _literal(self) -> Node:
        nodes: list[Node] = []
        while not self._cursor.take('"'):
            start = self._cursor.at
            point = self._cursor.char()
            known = self._single.get(point)
            if known is None:
                known = self._single[point] = self._one_of([(point, point)], start)
            nodes.append(known)
        return self._pool.sequence(nodes)

    def _char_class(self) -> Node:
        cursor = self._cursor
        start = cursor.at - 1
        negated = cursor.take("^")
        ranges: list[tuple[int, int]] = []
        while not cursor.take("]"):
            low_at = cursor.at
            low = high = cursor.char()
            if cursor.peek() == "-" and not cursor.source.startswith("-]", cursor.at):
                cursor.expect("-")
                high = cursor.char()
            if high < low:
                raise cursor.error(f"range {low:X}-{high:X} is reversed", low_at)
            ranges.append((low, high))
        chosen = union(ranges)
        return self._one_of(complement(chosen) if negated and ranges else chosen, start)

    def _one_of(self, ranges: Iterable[tuple[int, int]], start: int) -> Node:
        chosen = union(ranges)
        if not chosen:
            raise self._cursor.error("no character can match here", start)
        return self._pool.chars(chosen)

    def _group(self) -> Node:
        cursor = self._cursor
        self._depth += 1
        if self._depth > limits.MAX_GROUP_DEPTH:
            raise cursor.error(f"groups nest more than {limits.MAX_GROUP_DEPTH} deep")
        cursor.skip_blanks(newlines=True)
        inner = self._alternatives(nested=True)
        cursor.expect(")")
        self._depth -= 1
        return inner

    def _count(self, *, nested: bool) -> tuple[int, int | None] | None:
        """Read `*`, `+`, `?` or `{m,n}` if one comes next."""
        cursor = self._cursor
        start = cursor.at
        count = _COUNTS.get(cursor.peek())
        if count is not None:
            cursor.at += 1
        elif cursor.take("{"):
            count = self._braces(nested=nested)
            self._check_count(*count, start)
        else:
            return None
        cursor.skip_blanks(newlines=nested)
        return count

    def _braces(self, *, nested: bool) -> tuple[int, int | None]:
        cursor = self._cursor
        cursor.skip_blanks(newlines=nested)
        least = cursor.number()
        most: int | None = least
        cursor.skip_blanks(newlines=nested)
        if cursor.take(","):
            cursor.skip_blanks(newlines=nested)
            most = cursor.number() if cursor.at_number() else None
            cursor.skip_blanks(newlines=nested)
        cursor.expect("}")
        return least, most

    def _check_count(self, least: int, most: int | None, start: int) -> None:
        if least > limits.MAX_LEAST_REPEATS or (most or 0) > limits.MAX_MOST_REPEATS:
            raise self._cursor.error(
                f"too many repetitions, expected at most {limits.MAX_LEAST_REPEATS} as the smaller "
                f"count and {limits.MAX_MOST_REPEATS} as the larger",
                start,
            )
        if most is not None and most < least:
            raise self._cursor.error(f"counts {least},{most} are reversed", start)
