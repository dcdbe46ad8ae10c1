"""Whether rules make a grammar: a root, no unknown name, no left recursion, sane repetition.

The same is refused as in llama.cpp, though llguidance could follow left recursion: a grammar that
works here shall work there.
"""

from collections.abc import Callable, Iterable

from app.sampling.grammar import limits
from app.sampling.grammar.tree import Choice, Node, Repeat, Rule, Rules, Sequence, references


def check_rules(rules: Rules, root: str) -> None:
    """Raise RequestError when the rules cannot be used as a grammar."""
    if root not in rules:
        raise limits.gbnf_refusal(f"there is no rule {root!r}, which the text begins with")
    for name, body in rules.items():
        for wanted in references(body):
            if wanted not in rules:
                raise limits.gbnf_refusal(
                    f"rule {name!r} mentions {wanted!r}, which is not defined"
                )
        if _repeats(body) > limits.MAX_NESTED_REPEATS:
            raise limits.gbnf_refusal(f"rule {name!r} has too many repetitions inside one another")
    _refuse_left_recursion(rules)


def _repeats(node: Node) -> int:
    """How often the most repeated part may come, counting bounded repetition only."""
    match node:
        case Sequence(items) | Choice(items):
            return max(map(_repeats, items), default=1)
        case Repeat(item, least, most):
            return max(1, least if most is None else most) * _repeats(item)
        case _:
            return 1


def is_nullable(node: Node, nullable: Callable[[str], bool]) -> bool:
    """Return whether the node can match the empty text; `nullable` says so for rules."""
    match node:
        case Sequence(items):
            return all(is_nullable(item, nullable) for item in items)
        case Choice(items):
            return any(is_nullable(item, nullable) for item in items)
        case Repeat(item, least, most):
            return least == 0 or most == 0 or is_nullable(item, nullable)
        case Rule(name):
            return nullable(name)
        case _:
            return False


def nullable_rules(rules: Rules) -> frozenset[str]:
    """Return the names of the rules that can match the empty text."""
    mentioned_by: dict[str, set[str]] = {name: set() for name in rules}
    for name, body in rules.items():
        for wanted in references(body):
            mentioned_by[wanted].add(name)
    found: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in found and is_nullable(rules[name], found.__contains__):
            found.add(name)
            waiting.extend(mentioned_by[name])
    return frozenset(found)


def postorder(start: Iterable[str], edges: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the names reachable from `start`, each after those that it leads to."""
    order: list[str] = []
    seen: set[str] = set()
    for first in start:
        stack = [(first, iter(edges(first)))] if first not in seen else []
        seen.add(first)
        while stack:
            name, following = stack[-1]
            step = next((other for other in following if other not in seen), None)
            if step is None:
                order.append(name)
                stack.pop()
            else:
                seen.add(step)
                stack.append((step, iter(edges(step))))
    return order


def _refuse_left_recursion(rules: Rules) -> None:
    nullable = nullable_rules(rules)
    edges = {name: set(_leftmost(body, nullable)) for name, body in rules.items()}
    place = {name: i for i, name in enumerate(postorder(rules, edges.__getitem__))}
    for name, reached in edges.items():
        for other in reached:
            # In a postorder of an acyclic graph every edge leads to an earlier place.
            if place[other] >= place[name]:
                raise limits.gbnf_refusal(
                    f"rule {other!r} is left-recursive: it can begin with itself (by way of "
                    f"{name!r}); put something before the recursion"
                )


def _leftmost(node: Node, nullable: frozenset[str]) -> Iterable[str]:
    """The rules that the text of a node can begin with."""
    match node:
        case Rule(name):
            yield name
        case Choice(items):
            for item in items:
                yield from _leftmost(item, nullable)
        case Repeat(item):
            yield from _leftmost(item, nullable)
        case Sequence(items):
            for item in items:
                yield from _leftmost(item, nullable)
                if not is_nullable(item, nullable.__contains__):
                    return
