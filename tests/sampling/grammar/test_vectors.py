"""llama.cpp's grammar vectors: texts that it accepts and refuses, and the grammars that it makes of
JSON schemas, whose texts ours must accept, and the other way round.
"""

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

REFUSED_GRAMMARS: Final = {
    "simple grammar with tokens": "references to tokens",
    "complex grammar with tokens": "references to tokens",
    # llama.cpp skips keywords that it does not know; its own test says so.
    "required props": "uniqueItems",
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
    refused: set[str] = set()
    for name, grammar, accepted, rejected in blocks:
        if text(name) in REFUSED_GRAMMARS:
            with pytest.raises(RequestError, match=REFUSED_GRAMMARS[text(name)]):
                compiled(text(grammar))
            refused.add(text(name))
            continue
        assert strings(accepted)
        answers = wrong_answers(compiled(text(grammar)), accepted, rejected)
        if answers:
            wrong[text(name)] = answers
    assert not wrong
    assert refused <= REFUSED_GRAMMARS.keys()


def test_no_text_of_the_vectors_is_overlooked() -> None:
    blocks = [
        b for kind in ("test_grammar", "test_schema") for b in calls(source(INTEGRATION), kind)
    ]
    assert sum(len(strings(accepted)) for *_, accepted, _ in blocks) == 196
    assert sum(len(strings(rejected)) for *_, rejected in blocks) == 191


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
