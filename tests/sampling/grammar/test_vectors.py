"""llama.cpp's grammar vectors: texts that it accepts and refuses, and the grammars that it makes of
JSON schemas, whose texts ours must accept, and the other way round. Every case that we answer
otherwise is named here with its reason.
"""

import json
import random
import re
import tarfile
from functools import cache
from typing import Final

import numpy as np
import pytest

from app.errors import RequestError
from app.sampling.grammar.matcher import GrammarConstraint
from tests.helpers.assets import asset
from tests.sampling.grammar.byte_grammar import END, gbnf, json_schema, matches
from tests.sampling.grammar.cpp_calls import CppValue, calls

INTEGRATION: Final = "test-grammar-integration.cpp"
CONVERSION: Final = "test-json-schema-to-grammar.cpp"
PARSER: Final = "test-grammar-parser.cpp"
STACKS: Final = "test-llama-grammar.cpp"
SCHEMA_READER: Final = "test-json-schema.cpp"

N_ACCEPTED: Final = 196
N_REFUSED: Final = 191
"""As many as the C++ compiler finds when the two test functions only count what they are given."""

REFUSED_GRAMMARS: Final = {
    # Ours are about text; which tokens it comes in is not theirs to say.
    "simple grammar with tokens": "references to tokens",
    "complex grammar with tokens": "references to tokens",
}
SKIPPED_KEYWORD: Final = {
    # llama.cpp skips keywords that it does not know; its own test says so.
    "required props": "uniqueItems",
}
NO_VALUE: Final = {
    # Keywords that exclude one another: no value fits, and llama.cpp follows the first it finds.
    '{"type": "string", "pattern": "^[a-z]+$", "format": "date", "minLength": 2, "maxLength": 8}': (
        "Unsatisfiable"
    ),
    '{"type": "string", "const": "x", "enum": ["y"]}': "Unsatisfiable",
    '{"type": "string", "oneOf": [{"type": "null"}], "anyOf": '
    '[{"type": "number"}, {"type": "boolean"}]}': "Unsatisfiable",
    '{"$ref": "#/$defs/t", "type": "string", "$defs": {"t": {"type": "boolean"}}}': "Unsatisfiable",
    # No schema by the standard.
    '{"properties": {"a": {}}, "required": ["a", "zzz", 1]}': "'required'",
}

REFUSED_SCHEMAS: Final = {
    # llama.cpp accepts any string instead.
    "unsupported regexp in a property": "look-around",
}

ONLY_THEIRS: Final = {
    "max -5": "their numbers may have leading zeros",
    "exotic formats": "their days go to 31 in every month",
    "regexp quote": "a quotation mark of a pattern is not escaped in their JSON",
    "regexp": "a quotation mark of a pattern is not escaped in their JSON",
    "optional props with empty name": "their rule for the empty name takes the root's place",
    "unanchored regexp": "they accept any string",
    "regexp with unsupported shorthand": "they accept any string",
}

ONLY_OURS: Final = {
    "max 30": "-0 is an integer",
    "max 1": "-0 is an integer",
    "exotic formats": "RFC 3339 allows lower-case letters and offsets",
    "regexp quote": "a quotation mark of a pattern is escaped",
    "regexp": "a quotation mark of a pattern is escaped",
    "regexp with top-level alternation": "the anchors belong to the outer alternatives",
    "optional props with empty name": "their rule for the empty name takes the root's place",
    "literal string with escapes": "a character may be escaped in several ways",
    "mix of allOf, anyOf and $ref (similar to https://json.schemastore.org/tsconfig.json)": (
        "members of allOf do not become required"
    ),
}

LONE_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
FREE_NUMBER: Final = re.compile(rb"-0(?![.\d])|\d[eE][-+]?0\d|\d{17}")
"""Numbers that JSON allows and llama.cpp's grammar does not."""


@cache
def source(name: str) -> bytes:
    with tarfile.open(asset("llama_cpp_sdist")) as tar:
        for member in tar:
            if member.name.endswith(f"/vendor/llama.cpp/tests/{name}"):
                file = tar.extractfile(member)
                assert file is not None
                return file.read()
    raise AssertionError(f"no {name} in the archive")


def text(value: CppValue) -> str:
    assert isinstance(value, bytes)
    return value.decode()


def strings(value: CppValue) -> list[bytes]:
    assert isinstance(value, list)
    return [item for item in value if isinstance(item, bytes)]


def wrong_answers(
    constraint: GrammarConstraint, accepted: CppValue, refused: CppValue
) -> list[bytes]:
    right = [item for item in strings(accepted) if not matches(constraint, item)]
    return right + [item for item in strings(refused) if matches(constraint, item)]


@pytest.mark.parametrize(("kind", "n_blocks"), [("test_grammar", 14), ("test_schema", 33)])
def test_texts_are_accepted_and_refused_as_by_llama_cpp(kind: str, n_blocks: int) -> None:
    compiled = gbnf if kind == "test_grammar" else json_schema
    blocks = calls(source(INTEGRATION), kind)
    assert len(blocks) == n_blocks
    wrong: dict[str, list[bytes]] = {}
    for name, grammar, accepted, rejected in blocks:
        source_text = text(grammar)
        if keyword := SKIPPED_KEYWORD.get(text(name)):
            with pytest.raises(RequestError, match=keyword):
                compiled(source_text)
            source_text = json.dumps(dropped(json.loads(source_text), keyword))
        if text(name) in REFUSED_GRAMMARS:
            with pytest.raises(RequestError, match=REFUSED_GRAMMARS[text(name)]):
                compiled(source_text)
            continue
        assert strings(accepted)
        answers = wrong_answers(compiled(source_text), accepted, rejected)
        if answers:
            wrong[text(name)] = answers
    assert not wrong


def dropped(schema: object, keyword: str) -> object:
    """A schema without a keyword, wherever it stands."""
    if isinstance(schema, dict):
        return {key: dropped(value, keyword) for key, value in schema.items() if key != keyword}
    return [dropped(item, keyword) for item in schema] if isinstance(schema, list) else schema


def test_no_text_of_the_vectors_is_overlooked() -> None:
    blocks = [
        b for kind in ("test_grammar", "test_schema") for b in calls(source(INTEGRATION), kind)
    ]
    assert sum(len(strings(accepted)) for *_, accepted, _ in blocks) == N_ACCEPTED
    assert sum(len(strings(rejected)) for *_, rejected in blocks) == N_REFUSED
    excepted = [block for block in blocks if text(block[0]) in REFUSED_GRAMMARS]
    assert len(excepted) == len(REFUSED_GRAMMARS)
    assert sum(len(strings(accepted)) for *_, accepted, _ in excepted) == 10
    assert sum(len(strings(rejected)) for *_, rejected in excepted) == 10


def test_what_llama_cpp_cannot_parse_is_refused() -> None:
    failing = [text(call[0]) for call in calls(source(PARSER), "verify_failure")]
    failing += [
        text(grammar)
        for grammar in re.findall(
            rb'_str = R"""\((root ::= "a".*?|\s+root ::= asdf.*?)\)"""',
            source(INTEGRATION),
            re.DOTALL,
        )
    ]
    assert len(failing) == 10
    for grammar in failing:
        with pytest.raises(RequestError):
            gbnf(grammar)


def test_what_llama_cpp_can_parse_is_a_grammar() -> None:
    parsed = re.findall(rb'verify_parsing\(R"""\((.*?)\)"""', source(PARSER), re.DOTALL)
    assert len(parsed) == 17
    for grammar in parsed:
        if b"<" not in grammar:
            gbnf(text(grammar))


def test_the_characters_that_may_come_first_are_those_of_llama_cpp() -> None:
    """Its test has rules instead of text: the grammar of sums, which test-grammar-parser.cpp has as
    text too, and for each parse stack the characters from % to ; that it rejects.
    """
    tables = source(STACKS).split(b"expected_reject =")[1].split(b"};")[0]
    stacks = [re.findall(rb"\{\d+, (\d+)\}", part) for part in re.split(rb"\n        \},", tables)]
    rejected = set.intersection(*(set(map(int, stack)) for stack in stacks if stack))
    parsed = re.findall(rb'verify_parsing\(R"""\((.*?)\)"""', source(PARSER), re.DOTALL)
    grammar = gbnf(text(next(g for g in parsed if b"ident" in g and b"[a-z0-9_]" in g)))
    allowed = {byte for byte in range(37, 60) if grammar.allows(byte)}
    assert allowed == set(range(37, 60)) - rejected == {ord(c) for c in "(0123456789"}


def test_schemas_that_its_reader_refuses_are_refused() -> None:
    refused = re.findall(rb'assert_error\(t, R"\((.*?)\)", ', source(SCHEMA_READER))
    assert len(refused) == 22
    for schema in refused:
        with pytest.raises(RequestError):
            json_schema(text(schema))


def test_schemas_that_its_reader_takes_are_taken() -> None:
    taken = re.findall(rb'(?<!\w)parse\(R"\((.*?)\)"\)', source(SCHEMA_READER), re.DOTALL)
    assert len(taken) == 41
    refused: dict[str, str] = {}
    for schema in map(text, taken):
        try:
            json_schema(schema)
        except RequestError as error:
            refused[schema] = str(error)
    assert refused.keys() == NO_VALUE.keys()
    assert all(reason in refused[schema] for schema, reason in NO_VALUE.items())


def test_references_that_are_resolved_elsewhere_mean_the_same() -> None:
    found = re.findall(rb'common_json::parse\(R"""\((.*?)\)"""', source(CONVERSION), re.DOTALL)
    node, item = (json_schema(text(schema)) for schema in found)
    assert all(matches(node, t) for t in ("{}", '{"next":{"next":{},"leaf":[1]}}', '{"leaf":0}'))
    assert not any(matches(node, t) for t in ('{"next":1}', '{"other":1}', "[]"))
    assert all(matches(item, t) for t in ("{}", '{"item":{"a":"x"}}'))
    assert not any(matches(item, t) for t in ('{"item":{}}', '{"item":{"a":1}}'))


def sample(constraint: GrammarConstraint, seed: int) -> bytes | None:
    """A text of the grammar without optional white space; None when it did not end."""
    rng = random.Random(seed)
    constraint.reset()
    made = bytearray()
    for step in range(400):
        choices = [int(token) for token in np.flatnonzero(constraint.mask())]
        if END in choices and (choices == [END] or step > 60 or rng.random() < 0.3):
            return bytes(made)
        choices = [token for token in choices if token != END]
        closing = [token for token in choices if token in b'"}],:'] if step > 60 else []
        printable = [token for token in choices if 32 < token < 127]
        made.append(rng.choice(closing or printable or choices))
        constraint.accept(made[-1])
    return None


def samples(constraint: GrammarConstraint) -> list[bytes]:
    return [made for seed in range(25) if (made := sample(constraint, seed)) is not None]


def conversions() -> list[tuple[str, str, str, str]]:
    rows = [row for call in calls(source(CONVERSION), "test") for row in call]
    found = []
    for row in rows:
        if isinstance(row, list):
            status, name, schema, grammar = row
            found.append((text(status), text(name), text(schema), text(grammar)))
    assert len(found) == 81
    return found


def test_schemas_that_llama_cpp_refuses_are_refused() -> None:
    failing = [schema for status, _, schema, _ in conversions() if status == "FAILURE"]
    assert len(failing) == 3
    for schema in failing:
        with pytest.raises(RequestError):
            json_schema(schema)


def test_a_schema_means_what_it_means_in_llama_cpp() -> None:
    only_theirs: dict[str, list[bytes]] = {}
    only_ours: dict[str, list[bytes]] = {}
    n_texts = 0
    for status, name, schema, grammar in conversions():
        if status != "SUCCESS":
            continue
        if name in REFUSED_SCHEMAS:
            with pytest.raises(RequestError, match=REFUSED_SCHEMAS[name]):
                json_schema(schema)
            continue
        ours, theirs = json_schema(schema), gbnf(grammar)
        their_texts = [t for t in samples(theirs) if not LONE_SURROGATE.search(t)]
        our_texts = [t for t in samples(ours) if not FREE_NUMBER.search(t)]
        n_texts += len(their_texts) + len(our_texts)
        only_theirs[name] = [t for t in their_texts if not matches(ours, t)]
        only_ours[name] = [t for t in our_texts if not matches(theirs, t)]
    assert n_texts > 3000
    assert not {name: t for name, t in only_theirs.items() if t and name not in ONLY_THEIRS}
    assert not {name: t for name, t in only_ours.items() if t and name not in ONLY_OURS}


def test_the_sample_grammars_can_be_followed() -> None:
    ended: dict[str, bool] = {}
    with tarfile.open(asset("llama_cpp_sdist")) as tar:
        for member in tar:
            if re.search(r"/vendor/llama\.cpp/grammars/\w+\.gbnf$", member.name):
                file = tar.extractfile(member)
                assert file is not None
                ended[member.name] = sample(gbnf(file.read().decode()), 1) is not None
    assert len(ended) == 8
    assert sum(ended.values()) >= 4
