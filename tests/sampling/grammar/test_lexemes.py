"""The cut into lexemes keeps the language: the longest match against a plain recogniser."""

from itertools import product

import pytest

from app.errors import RequestError
from app.sampling.grammar.check import check_rules
from app.sampling.grammar.compiler import gbnf_to_lark
from app.sampling.grammar.gbnf import parse_gbnf
from app.sampling.grammar.lexemes import LexemeCut
from app.sampling.grammar.rewrite import with_regular_groups, without_tail_recursion
from app.sampling.grammar.tree import Chars, Pool, Rules
from tests.sampling.grammar.byte_grammar import gbnf, matches
from tests.sampling.grammar.random_gbnf import random_gbnf
from tests.sampling.grammar.recogniser import recognises

SWALLOWING = (
    'root ::= "(" root ")" | [ab]* "ab"',
    'root ::= "(" root ")" | [ab]+ root? "b"',
    'root ::= word | "a" root "b"\nword ::= "ab" | "aba" | [a]',
    'root ::= name ("(" root ")")?\nname ::= "a" | "ab" | "b" name',
    'root ::= ws "a" ws root? ws\nws ::= "b"*',
    'root ::= "a" root "b" | "b"? "a"? "b"?',
    'root ::= s+\ns ::= "a" s "b" | "ab" | "b"',
    'root ::= ("a"* | "b"+)? root2\nroot2 ::= "(" root2 ")" | "a" "b"{0,2}',
)
"""Grammars in which some lexeme could take what belongs to the next one."""


def parsed(source: str) -> tuple[Rules, Pool]:
    pool = Pool()
    rules = parse_gbnf(source, pool)
    check_rules(rules, "root")
    return rules, pool


def texts(alphabet: str, longest: int) -> list[str]:
    return [
        "".join(chars)
        for length in range(longest + 1)
        for chars in product(alphabet, repeat=length)
    ]


def assert_same_language(source: str, alphabet: str, longest: int) -> int:
    rules, _ = parsed(source)
    constraint = gbnf(source)
    expected = {text for text in texts(alphabet, longest) if recognises(rules, text)}
    assert {text for text in texts(alphabet, longest) if matches(constraint, text)} == expected
    return len(expected)


@pytest.mark.parametrize("source", SWALLOWING)
def test_the_longest_match_never_loses_a_text(source: str) -> None:
    assert assert_same_language(source, "ab()", 5) > 0


def test_made_up_grammars_keep_their_language() -> None:
    n_kept = n_matching = 0
    for seed in range(150):
        source = random_gbnf(seed, "ab")
        try:
            parsed(source)
        except RequestError:
            continue
        n_kept += 1
        n_matching += assert_same_language(source, "ab", 5)
    assert n_kept > 100
    assert n_matching > 1000


def cut(source: str) -> LexemeCut:
    rules, pool = parsed(source)
    rules = with_regular_groups(without_tail_recursion(rules, pool), "root", pool)
    return LexemeCut(rules, "root")


def lexemes(source: str) -> list[object]:
    made = cut(source)
    bodies = made.rules().values()
    return list({part for body in bodies for part in made.parts(body) if made.is_lexeme(part)})


def test_a_regular_grammar_is_one_lexeme() -> None:
    assert len(lexemes('root ::= a ("," a)*\na ::= [0-9]+ ("." [0-9]+)?')) == 1


def test_only_what_clashes_is_taken_apart() -> None:
    source = 'root ::= "(" root ")" | "\\"" [^"]* "\\"" word root\nword ::= [a-z]*'
    assert n_single(source) == 2
    swallowing = 'root ::= "(" root ")" | [a-z]+ root "z"'
    assert n_single(swallowing) == len(lexemes(swallowing))


def n_single(source: str) -> int:
    return sum(isinstance(lexeme, Chars) for lexeme in lexemes(source))


def test_regular_alternatives_are_one_lexeme() -> None:
    assert len(lexemes('root ::= "(" root ")" | "one" | "two" | "three"')) == 3


@pytest.mark.parametrize(
    "rule",
    [
        'list ::= "x" list | "x"',
        'list ::= "x" list?',
        'list ::= ("x" list)?',
        'list ::= | "x" list',
    ],
)
def test_a_list_by_tail_recursion_is_a_repetition(rule: str) -> None:
    source = f'root ::= "(" root ")" | list\n{rule}'
    constraint = gbnf(source)
    assert matches(constraint, "(" + "x" * 5000 + ")")


def test_a_long_nesting_is_followed() -> None:
    constraint = gbnf('root ::= "[" root? "]"')
    assert matches(constraint, "[" * 500 + "]" * 500)
    assert not matches(constraint, "[" * 500 + "]" * 499)


def test_nothing_of_a_source_is_copied_into_the_lark_text() -> None:
    lark = gbnf_to_lark('root ::= start\nstart ::= "%ignore /x/" "\\n" "//" [/]')
    assert "ignore" not in lark.replace(r"\x{25}ignore", "")
    assert "//" not in lark
