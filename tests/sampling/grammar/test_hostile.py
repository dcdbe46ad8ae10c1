"""Sources that would take for ever, or too much: each ends soon, with a constraint or an error."""

import json
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from app.errors import RequestError
from app.sampling.errors import SamplingError
from app.sampling.grammar.matcher import GrammarConstraint
from tests.sampling.grammar.byte_grammar import END, gbnf, json_schema

MAX_SECONDS: Final = 20.0
"""Of processor time. Measured: at most 2.5 s alone on one core."""
N_TOKENS: Final = 5


def numbered(template: str, n: int) -> str:
    return "\n".join(template.format(i=i, next=i + 1) for i in range(n))


GBNF: Final[dict[str, Callable[[], str]]] = {
    "ten megabytes": lambda: 'root ::= "' + "a" * 10_000_000 + '"',
    "the longest literal": lambda: 'root ::= "' + "a" * 65_000 + '"',
    "a million repetitions": lambda: 'root ::= "a"{1,1000000}',
    "many repetitions": lambda: 'root ::= "a"{1,10000} root?',
    "a number of many digits": lambda: 'root ::= "a"{1,' + "9" * 5000 + "}",
    "repetitions inside one another": lambda: "root ::= " + "(" * 6 + "[^x]*" + "){0,99}" * 6,
    "many signs": lambda: 'root ::= "a"' + "*" * 60_000,
    "deep groups": lambda: "root ::= " + "(" * 60_000,
    "deep recursion": lambda: (
        "root ::= a0\n"
        + numbered('a{i} ::= "y" a{next} "z"', 1900)
        + '\na1900 ::= "x" | "(" a0 ")"'
    ),
    "a chain of choices": lambda: (
        "root ::= a0\n"
        + numbered('a{i} ::= a{next} | "q{i}"', 1900)
        + '\na1900 ::= "x" | "(" a0 ")"'
    ),
    "too many rules": lambda: 'root ::= "a"\n' + numbered('a{i} ::= "x"', 3000),
    "doubling rules": lambda: (
        "root ::= a0\n" + numbered("a{i} ::= a{next} a{next}", 60) + '\na60 ::= "x"'
    ),
    "doubling recursive rules": lambda: (
        "root ::= a0\n" + numbered("a{i} ::= a{next} a{next}", 60) + '\na60 ::= "x" | "(" a0 ")"'
    ),
    "many words": lambda: "root ::= " + " | ".join(f'"w{i * 7919}"' for i in range(4500)),
    "many repeated words": lambda: (
        'root ::= "(" root ")" | (' + " | ".join(f'"w{i * 7919}"' for i in range(4000)) + ")*"
    ),
    "many overlapping classes": lambda: (
        'root ::= "(" root ")" | ' + " ".join(f"[^{chr(0x4E00 + i)}]*" for i in range(3000))
    ),
    "many optional items": lambda: " ".join(["root ::= ", *['"x"?'] * 3000]),
    "an ambiguous loop": lambda: "root ::= (" + '"a"? ' * 20 + ')* | "(" root ")"',
    "an ambiguous recursion": lambda: 'root ::= "a" root root | "a" root | "a"',
    "exponentially many states": lambda: 'root ::= [ab]* "a" [ab]{200} root?',
    "no end": lambda: 'root ::= "x" root',
    "many alternatives of recursion": lambda: " | ".join(
        ['root ::= "1"', *(f'"{a}" root "{b}"' for a in "abcdefghijklmn" for b in "abcdefghijklmn")]
    ),
    "empty alternatives": lambda: "root ::= " + "|" * 60_000,
    "comments": lambda: "# c\n" * 15_000 + 'root ::= "a"',
    "a broken surrogate": lambda: 'root ::= "\ud800"',
    "a zero byte": lambda: 'root ::= "\0"',
}


def chain(wrap: Callable[[dict[str, object]], object]) -> str:
    """As many definitions as fit, each referring to the next."""
    found: dict[str, object] = {}
    size = 0
    while size < 115_000:
        found[str(len(found))] = wrap({"$ref": f"#/$defs/{len(found) + 1}"})
        size += len(json.dumps(found[str(len(found) - 1)])) + 10
    found[str(len(found))] = {"type": "integer"}
    return json.dumps({"$ref": "#/$defs/0", "$defs": found}, separators=(",", ":"))


def hard_pattern(n: int) -> str:
    """A pattern whose automaton has 2 to the power of n states."""
    return f"(a|b)*a(a|b){{{n}}}"


def joined(schemas: list[dict[str, object]]) -> str:
    return json.dumps({"allOf": schemas})


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


SCHEMAS: Final[dict[str, Callable[[], str]]] = {
    "ten megabytes": lambda: json.dumps({"const": "a" * 10_000_000}),
    "a large constant": lambda: json.dumps({"const": "a" * 120_000}),
    "brackets": lambda: "[" * 120_000,
    "deep": lambda: nested(1000),
    "deep enough": lambda: nested(90),
    "many properties": lambda: json.dumps({"properties": {f"p{i}": {} for i in range(1000)}}),
    "too many properties": lambda: json.dumps({"properties": {f"p{i}": {} for i in range(5000)}}),
    "many values": lambda: json.dumps({"enum": [f"value {i * 7919}" for i in range(6000)]}),
    "long items": lambda: json.dumps(
        {"type": "array", "items": {"type": "string"}, "minItems": 10**6, "maxItems": 10**7}
    ),
    "a long string": lambda: json.dumps({"type": "string", "minLength": 10**6}),
    "a chain of references": lambda: chain(dict),
    "a chain of properties": lambda: chain(lambda ref: {"properties": {"a": ref}}),
    "a chain of items": lambda: chain(lambda ref: {"items": ref}),
    "a chain of alternatives": lambda: chain(lambda ref: {"anyOf": [ref, {"type": "null"}]}),
    "a chain of joins": lambda: chain(lambda ref: {"allOf": [ref, {"type": "integer"}]}),
    "doubling joins": lambda: json.dumps(
        {
            "$ref": "#/$defs/0",
            "$defs": {
                **{str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)},
                "40": {"type": "object", "properties": {"x": {}}},
            },
        }
    ),
    "joined alternatives": lambda: joined(
        [{"anyOf": [{"properties": {f"x{i}{j}": {}}} for j in range(4)]} for i in range(12)]
    ),
    "joined patterns": lambda: joined(
        [{"type": "string", "pattern": hard_pattern(i)} for i in range(10, 30)]
    ),
    "patterns joined in a property": lambda: joined(
        [{"properties": {"p": {"pattern": hard_pattern(i)}}} for i in range(10, 30)]
    ),
    "patterns joined by references": lambda: json.dumps(
        {
            "$ref": "#/$defs/0",
            "$defs": {
                str(i): {"pattern": hard_pattern(i), "$ref": f"#/$defs/{i + 1}"} for i in range(30)
            },
        }
    ),
    "joined multiples": lambda: joined([{"multipleOf": n} for n in (2, 3, 5, 7, 11, 13, 17, 19)]),
    "a large multiple": lambda: json.dumps({"type": "integer", "multipleOf": 100_000_007}),
    "nested repetition in a pattern": lambda: json.dumps(
        {"type": "string", "pattern": "^(((a{1,100}){1,100}){1,100}){1,100}$"}
    ),
    "deep groups in a pattern": lambda: json.dumps(
        {"type": "string", "pattern": "(" * 5000 + "a" + ")" * 5000}
    ),
    "itself": lambda: '{"$ref": "#"}',
    "itself and more": lambda: '{"allOf": [{"$ref": "#"}, {"type": "object"}]}',
    "a lone surrogate": lambda: '{"const": "\\ud800"}',
    "a long number": lambda: '{"minimum": ' + "1" * 100_000 + "}",
}


def follow(constraint: GrammarConstraint) -> None:
    for _ in range(N_TOKENS):
        tokens = np.flatnonzero(constraint.mask())
        tokens = tokens[tokens != END]
        if not tokens.size:
            return
        constraint.accept(int(tokens[tokens.size // 2]))


def ends_soon(compiled: Callable[[str], GrammarConstraint], source: str) -> None:
    start = time.process_time()
    try:
        follow(compiled(source))
    except (RequestError, SamplingError) as error:
        assert 20 < len(str(error)) < 1000
    assert time.process_time() - start < MAX_SECONDS


@pytest.mark.parametrize("name", GBNF)
def test_a_hostile_grammar_ends_soon(name: str) -> None:
    ends_soon(gbnf, GBNF[name]())


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_hostile_schema_ends_soon(name: str) -> None:
    ends_soon(json_schema, SCHEMAS[name]())
