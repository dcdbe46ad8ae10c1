"""GBNF's language: what is read, and errors that name the place."""

import pytest

from app.errors import RequestError
from app.sampling.grammar.compiler import gbnf_to_lark
from tests.sampling.grammar.byte_grammar import gbnf, matches

READ = {
    r'"\x41\u00e9\U0001F535"': ("Aé🔵", "A\xe9\U0001f535x"),
    r'"\n\t\r\\\"\[\]\-"': ('\n\t\r\\"[]-', "n"),
    r"[a-c\x30-\x32é]{2}": ("bé", "b3"),
    r"[^\x00-\x7F]+": ("é🔵", "éa"),
    r"[-a] [a-]": ("-a", "b-"),
    r"[\]\[^]": ("^", "\\"),
    "..": ("\né", "é"),
    '"a"? "b"* "c"+': ("bbc", "ab"),
    '"a"{3} "b"{2,} "c"{0,1}': ("aaabb", "aaab"),
    '"a"{0} "b"': ("b", "ab"),
    '"a" {1, 2}': ("aa", "aaa"),
    '("a" | "b" | )+ "c"': ("abac", "ab"),
    '"a" | "b" # | "c"': ("b", "c"),
    '(\n"a"\n# comment\n|\n"b"\n)': ("a", "ab"),
    '"a" |\n "b"': ("b", "ab"),
    '"a"+?': ("", "b"),
    '""': ("", "a"),
}


@pytest.mark.parametrize("body", READ)
def test_a_rule_matches_what_it_says(body: str) -> None:
    right, wrong = READ[body]
    constraint = gbnf(f"# a comment\n\nroot ::= {body}\r\n")
    assert matches(constraint, right)
    assert not matches(constraint, wrong)


def test_counts_above_llama_cpps_limit_are_kept() -> None:
    constraint = gbnf('root ::= "a"{0,5000}')
    assert matches(constraint, "a" * 5000)
    assert not matches(constraint, "a" * 5001)


def test_the_grammar_begins_with_root_wherever_it_stands() -> None:
    constraint = gbnf('other-1 ::= "x"\nroot ::= other-1 Other2\nOther2 ::= "y"')
    assert matches(constraint, "xy")


REFUSED = {
    "root ::= this is (not valid GBNF": "line 1, column 33: expected ')', got the end",
    'root ::= "a"\n\nb = "c"': "line 3, column 3: expected '::=', got '='",
    'root ::= "a': "line 1, column 12: the text ends inside a literal",
    "root ::= [a": "line 1, column 12: the text ends inside a literal or a character class",
    'root ::= "\\q"': r"line 1, column 11: unknown escape '\\\\q'",
    'root ::= "\\u12"': "line 1, column 11: expected 4 hexadecimal digits",
    'root ::= "\\UFFFFFFFF"': "line 1, column 11: code point FFFFFFFF is beyond",
    "root ::= [z-a]": "line 1, column 11: range 7A-61 is reversed",
    "root ::= []": "line 1, column 10: no character can match",
    'root ::= "\\uD800"': "line 1, column 11: no character can match",
    "root ::= *": "line 1, column 10: expected something to repeat",
    'root ::= "a"{,3}': "line 1, column 14: expected a number",
    'root ::= "a"{3,1}': "line 1, column 13: counts 3,1 are reversed",
    'root ::= "a"{2001}': "line 1, column 13: too many repetitions",
    'root ::= "a"{1,1000000}': "line 1, column 13: too many repetitions",
    "root ::= (([a]{0,99}){0,99}){0,99}": "'root' has too many repetitions inside",
    'root ::= "a"*****': "line 1, column 18: more than 4 repetition signs",
    'root ::= "a" )': "line 1, column 14: expected the end of the line",
    'root ::= "a"\n | "b"': "line 2, column 2: expected the name of a rule",
    "root ::= a_b": "line 1, column 11: expected the end of the line, got '_'",
    'root ::= "a"\nroot ::= "b"': "line 2, column 1: rule 'root' is defined twice",
    'root ::= <think> "a"': "line 1, column 10: references to tokens",
    "root ::= !<[11]>*": "line 1, column 10: references to tokens",
    "root ::= x": "'root' mentions 'x', which is not defined",
    'a ::= "b"': "there is no rule 'root'",
    "": "there is no rule 'root'",
    'root ::= "a" | root "a"': "rule 'root' is left-recursive",
    'root ::= a\na ::= b "x" | "y"\nb ::= c? a\nc ::= "z"': "is left-recursive",
}


@pytest.mark.parametrize("source", REFUSED)
def test_a_malformed_grammar_is_refused_with_its_place(source: str) -> None:
    with pytest.raises(
        RequestError, match=f"^Failed to parse grammar: .*{_quoted(source)}"
    ) as info:
        gbnf_to_lark(source)
    assert info.value.param == "grammar"


def _quoted(source: str) -> str:
    message = REFUSED[source]
    for sign in "()'?*":
        message = message.replace(sign, f"\\{sign}")
    return message


def test_text_that_could_not_be_told_from_a_token_reference_is_a_literal() -> None:
    assert matches(gbnf('root ::= "<think>" [<!]'), "<think>!")
