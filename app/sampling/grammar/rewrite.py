"""Rules → rules of the same language that are easier on the parser.

Tail recursion becomes repetition, `ws ::= ([ \\t] ws)?` turns into `[ \\t]*`: people write lists
and white space like that, and the parser's work per character would grow with their length. What is
regular is put together, so that a list of words is one lexeme.
"""

from itertools import groupby
from typing import NamedTuple

from app.sampling.grammar.measure import Measures
from app.sampling.grammar.tree import (
    EMPTY,
    Choice,
    Node,
    Pool,
    Repeat,
    Rule,
    Rules,
    Sequence,
    references,
)


class _Split(NamedTuple):
    """A body as alternatives: some end with the rule itself, which is left out, some without."""

    going_on: tuple[Node, ...]
    ending: tuple[Node, ...]


def without_tail_recursion(rules: Rules, pool: Pool) -> dict[str, Node]:
    """Return rules of the same language in which no rule ends with itself, as far as that is the
    only place where it mentions itself and it can also end otherwise.
    """
    return {name: _rewritten(name, body, pool) for name, body in rules.items()}


def _rewritten(name: str, body: Node, pool: Pool) -> Node:
    if name not in references(body):
        return body
    split = _split(body, name, pool)
    if not split.going_on or not split.ending:
        return body
    if any(name in references(part) for part in (*split.going_on, *split.ending)):
        return body
    loop = pool.repeat(pool.choice(split.going_on), 0, None)
    return pool.sequence((loop, pool.choice(split.ending)))


def _split(node: Node, name: str, pool: Pool) -> _Split:
    match node:
        case _ if name not in references(node):
            return _Split((), (node,))
        case Rule():
            return _Split((EMPTY,), ())
        case Choice(items):
            parts = [_split(item, name, pool) for item in items]
            return _Split(
                tuple(going for part in parts for going in part.going_on),
                tuple(end for part in parts for end in part.ending),
            )
        case Sequence(items):
            last = _split(items[-1], name, pool)
            return _Split(
                tuple(pool.sequence((*items[:-1], going)) for going in last.going_on),
                tuple(pool.sequence((*items[:-1], end)) for end in last.ending),
            )
        case Repeat(item, 0, 1):
            inner = _split(item, name, pool)
            return _Split(inner.going_on, (*inner.ending, EMPTY))
        case _:
            return _Split((), (node,))


def with_regular_groups(rules: Rules, root: str, pool: Pool) -> dict[str, Node]:
    """Return rules in which the regular alternatives of a choice are one alternative, and regular
    items that follow each other are one item.
    """
    measures = Measures(rules, root)
    return {name: _grouped(body, measures, pool) for name, body in rules.items()}


def _grouped(node: Node, measures: Measures, pool: Pool) -> Node:
    if measures.of(node) is not None:
        return node
    match node:
        case Choice(items):
            regular = [item for item in items if measures.of(item) is not None]
            others = [item for item in items if measures.of(item) is None]
            groups = [_grouped(item, measures, pool) for item in others]
            return pool.choice([*groups, pool.choice(regular)] if regular else groups)
        case Sequence(items):
            runs = groupby(items, lambda item: measures.of(item) is not None)
            return pool.sequence(
                part
                for regular, run in runs
                for part in (
                    [pool.sequence(run)]
                    if regular
                    else [_grouped(item, measures, pool) for item in run]
                )
            )
        case Repeat(item, least, most):
            return pool.repeat(_grouped(item, measures, pool), least, most)
        case _:
            return node
