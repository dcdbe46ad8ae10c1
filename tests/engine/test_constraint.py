"""Constraints from requests: the tokenizer's pieces and ends, real vocabularies, speed, errors."""

import subprocess
import sys
from functools import cache
from typing import Final

import numpy as np
import pytest

from app.engine.constraint import make_constraint, prepare_constraints, token_table
from app.engine.request import Grammar, GrammarKind
from app.errors import RequestError
from app.ggml.gguf_file import GGUFFile
from app.sampling.constraint import Constraint
from app.tokenizer.base import Tokenizer
from app.tokenizer.factory import load_tokenizer
from tests.helpers.assets import PROJECT_ROOT, asset
from tests.helpers.fake_tokenizer import EOS, LetterTokenizer
from tests.helpers.work import lines_run

JSON_GBNF: Final = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
JSON_TEXT: Final = '{"name": "The quick brown fox", "list": [1, -2.5e3, {"a": "こんにちは"}, true]}'
MOST_MASK_LINES: Final = 50


def gbnf(source: str) -> Grammar:
    return Grammar(GrammarKind.GBNF, source)


def schema(source: str) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, source)


@cache
def tokenizer(name: str) -> Tokenizer:
    with GGUFFile.open(asset(name)) as gguf:
        return load_tokenizer(gguf.metadata)


def allowed(constraint: Constraint) -> set[int]:
    return set(map(int, np.flatnonzero(constraint.mask())))


def test_both_languages_reach_the_sampler() -> None:
    letters = LetterTokenizer()
    for grammar in (gbnf('root ::= "ab"'), gbnf('root ::= [a] "b"')):
        constraint = make_constraint(grammar, letters)
        assert allowed(constraint) == {0}
        constraint.accept(0)
        assert allowed(constraint) == {1}
        constraint.accept(1)
        assert allowed(constraint) == {EOS}
    assert allowed(make_constraint(schema('{"enum": [true, null]}'), letters)) == {
        ord("t") - ord("a"),
        ord("n") - ord("a"),
    }


@pytest.mark.parametrize("grammar", [gbnf("root ::= ("), schema('{"type": "hiccup"}')])
def test_a_wrong_grammar_is_a_wrong_request(grammar: Grammar) -> None:
    with pytest.raises(RequestError, match="Failed to parse grammar"):
        make_constraint(grammar, LetterTokenizer())


def test_a_vocabulary_is_built_once_and_goes_with_its_tokenizer() -> None:
    calls: list[int] = []

    class Counting(LetterTokenizer):
        def piece(self, token: int, *, special: bool) -> bytes:
            calls.append(token)
            return super().piece(token, special=special)

    counting = Counting()
    prepare_constraints(counting)
    n_calls = len(calls)
    assert n_calls >= 27
    for _ in range(3):
        make_constraint(gbnf('root ::= "a"'), counting)
    assert len(calls) == n_calls


def test_control_tokens_have_no_text_and_all_ends_are_known() -> None:
    smollm2 = tokenizer("smollm2")
    table = token_table(smollm2)
    vocab = smollm2.vocab
    assert table.end_ids == vocab.eog
    assert len(table.end_ids) > 1
    assert all(not table.pieces[token] for token in table.end_ids)
    anything = make_constraint(gbnf("root ::= .*"), smollm2)
    mask = anything.mask()
    hidden = [token for token in range(vocab.n_tokens) if not table.pieces[token]]
    assert {token for token in hidden if mask[token]} == table.end_ids
    assert mask.sum() > 0.98 * vocab.n_tokens


@pytest.mark.parametrize("name", ["smollm2", "gemma3", "stories260k"])
@pytest.mark.parametrize("grammar", [gbnf(JSON_GBNF), schema("{}")], ids=["gbnf", "schema"])
def test_every_token_of_a_json_text_is_allowed_in_turn(name: str, grammar: Grammar) -> None:
    model = tokenizer(name)
    tokens = model.encode(JSON_TEXT, add_special=False, parse_special=False)
    if model.decode(tokens, special=False).startswith(" "):
        tokens = tokens[1:]
    constraint = make_constraint(grammar, model)
    for token in tokens:
        assert not any(constraint.allows(end) for end in model.vocab.eog)
        assert constraint.allows(token)
        assert constraint.mask()[token]
        constraint.accept(token)
    assert all(constraint.allows(end) for end in model.vocab.eog)


@pytest.mark.parametrize("grammar", [gbnf(JSON_GBNF), schema("{}")], ids=["gbnf", "schema"])
def test_a_warm_mask_looks_at_no_single_token(grammar: Grammar) -> None:
    model = tokenizer("smollm2")
    constraint = make_constraint(grammar, model)
    tokens = model.encode(JSON_TEXT, add_special=False, parse_special=False)
    for lines in (_mask_lines(constraint, tokens) for _ in range(2)):
        most = max(lines)
    assert most < MOST_MASK_LINES


def _mask_lines(constraint: Constraint, tokens: list[int]) -> list[int]:
    run = []
    constraint.reset()
    for token in tokens:
        run.append(lines_run(constraint.mask))
        constraint.accept(token)
    return run


PEER_SUITE: Final[dict[str, tuple[Grammar, str]]] = {
    "const": (schema('{"const": "42"}'), '"42"'),
    "long const": (schema('{"const": "foooooo"}'), '"foooooo"'),
    "object": (schema('{"type": "object"}'), '{"a": 1}'),
    "tuple": (schema('{"items": [{"type": "integer"}]}'), "[ -3000 ]"),
    "repetition": (gbnf('root ::= "a"{5,5}'), "aaaaa"),
}


@pytest.mark.parametrize("name", PEER_SUITE)
def test_texts_of_llama_cpps_server_tests_can_be_made(name: str) -> None:
    grammar, text = PEER_SUITE[name]
    model = tokenizer("stories260k")
    constraint = make_constraint(grammar, model)
    for byte in text.encode():
        fitting = [t for t in allowed(constraint) if model.piece(t, special=False) == bytes([byte])]
        assert fitting
        constraint.accept(fitting[0])
    ends = set(model.vocab.eog)
    assert ends <= allowed(constraint)


def test_the_grammar_library_is_loaded_with_the_first_grammar_only() -> None:
    program = (
        "import sys, app.engine.constraint\n"
        "assert not {'llguidance', 'torch', 'transformers'} & set(sys.modules)\n"
        "from app.engine.request import Grammar, GrammarKind\n"
        "from tests.helpers.fake_tokenizer import LetterTokenizer\n"
        "grammar = Grammar(GrammarKind.GBNF, 'root ::= \"a\"')\n"
        "app.engine.constraint.make_constraint(grammar, LetterTokenizer())\n"
        "assert 'llguidance' in sys.modules\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=PROJECT_ROOT, check=True, timeout=60)
