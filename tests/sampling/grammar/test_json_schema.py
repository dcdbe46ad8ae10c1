"""JSON schemas: what they mean by default, and errors that name the cause."""

import json

import pytest

from app.errors import RequestError
from app.sampling.grammar.json_schema import prepare_schema
from tests.sampling.grammar.byte_grammar import json_schema, matches

Schema = dict[str, object] | bool | list[object] | int


def accepts(schema: Schema, *texts: str) -> list[bool]:
    constraint = json_schema(json.dumps(schema))
    return [matches(constraint, text) for text in texts]


def test_white_space_is_bounded_as_in_llama_cpp() -> None:
    schema: Schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    allowed = ('{"a":1}', '{ "a": 1 }', '{\n  "a":\n\n\t1\n}', "{}", "{ }")
    assert all(accepts(schema, *allowed))
    refused = ('{"a":  1}', '{\n\n\n"a":1}', '{"a":\t1}', ' {"a":1}', '{"a":1} ', "{" + " " * 21)
    assert not any(accepts(schema, *refused))


def test_an_object_has_its_properties_in_order_and_no_others() -> None:
    schema: Schema = {
        "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
        "required": ["b"],
    }
    assert accepts(schema, '{"a":1,"b":null}', '{"b":null}') == [True, True]
    refused = ('{"b":null,"a":1}', '{"a":1}', '{"b":null,"c":1}', "1", "[]")
    assert not any(accepts(schema, *refused))


def test_other_properties_may_be_allowed() -> None:
    schema: Schema = {"properties": {"a": {"type": "integer"}}, "additionalProperties": True}
    assert accepts(schema, '{"a":1,"c":[2]}', '{"c":2}', '{"a":"x"}') == [True, True, False]
    assert accepts({"type": "object"}, '{"c":[{}]}') == [True]


def test_parts_of_one_object_do_not_shut_each_other_out() -> None:
    named = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    inner = {"properties": {"n": {"type": "integer"}}}
    schema: Schema = {
        "$defs": {"named": named, "inner": inner},
        "allOf": [
            {"$ref": "#/$defs/named"},
            {"properties": {"inner": {"$ref": "#/$defs/inner"}}, "required": ["inner"]},
        ],
    }
    assert accepts(schema, '{"name":"x","inner":{"n":1}}') == [True]
    assert accepts(schema, '{"name":"x"}', '{"name":"x","inner":{"m":1}}') == [False, False]


def test_each_alternative_is_closed_on_its_own() -> None:
    schema: Schema = {
        "oneOf": [
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
        ]
    }
    assert accepts(schema, '{"a":1}', '{"b":1}') == [True, True]
    assert accepts(schema, '{"a":1,"b":1}', "{}") == [False, False]


@pytest.mark.parametrize("key", ["items", "prefixItems"])
def test_a_list_of_items_is_a_tuple(key: str) -> None:
    schema: Schema = {key: [{"type": "integer"}, {"type": "null"}]}
    assert accepts(schema, "[1,null]", "[ 1, null ]") == [True, True]
    assert not any(accepts(schema, "[1]", "[1,null,1]", "[null,1]", "{}", "1"))


def test_keywords_of_one_type_imply_it() -> None:
    assert accepts({"items": {"type": "integer"}}, "[1,2]", "1", "{}") == [True, False, False]
    assert accepts({"pattern": "^a+$"}, '"aa"', '"b"', "1") == [True, False, False]
    assert accepts({"additionalProperties": True}, "1") == [True]


def test_integers_have_at_most_sixteen_digits() -> None:
    schema: Schema = {"type": "integer"}
    assert accepts(schema, "9" * 16, "-" + "9" * 16, "1" * 17) == [True, True, False]
    assert accepts({"type": "integer", "minimum": 5}, "5", "4", "1" * 17) == [True, False, False]
    assert accepts({"type": "integer", "enum": [10**17]}, str(10**17)) == [True]
    assert accepts({"type": "integer", "multipleOf": 7}, "14", "15") == [True, False]


def test_recursion_through_local_references() -> None:
    schema: Schema = {
        "$defs": {"tree": {"properties": {"kids": {"items": {"$ref": "#/$defs/tree"}}}}},
        "$ref": "#/$defs/tree",
    }
    assert accepts(schema, '{"kids":[{"kids":[]},{}]}', '{"kids":[1]}') == [True, False]


def test_any_json_follows_the_empty_schema() -> None:
    anything: tuple[Schema, ...] = ({}, True)
    for schema in anything:
        texts = ("1", '"x"', "null", "[1, {}]", '{"a": {"b": [true]}}')
        assert all(accepts(schema, *texts))
        assert not any(accepts(schema, "", "{", "nul", "[1,]", "tru", "01"))


def test_characters_of_a_string_may_be_escaped() -> None:
    schema: Schema = {"type": "string", "maxLength": 2}
    texts = (r'"\n"', r'"\u00e9"', '"é"', r'"\\\""', '"\n"', '"abc"', r'"\x"')
    assert accepts(schema, *texts) == [True, True, True, True, False, False, False]


def test_formats_and_patterns_hold() -> None:
    date: Schema = {"type": "string", "format": "date"}
    assert accepts(date, '"2024-02-29"', '"2024-13-01"') == [True, False]
    assert accepts({"type": "string", "pattern": r"^\d{3}$"}, '"123"', '"12a"') == [True, False]


def test_options_of_the_engine_are_not_for_clients() -> None:
    strict: Schema = {"x-guidance": {"lenient": True}, "type": "string", "format": "nonsense"}
    with pytest.raises(RequestError, match="nonsense"):
        accepts(strict)
    spaced: Schema = {"x-guidance": {"whitespace_pattern": " +"}, "items": {}}
    assert accepts(spaced, "[  1]") == [False]


REFUSED: dict[str, str] = {
    "123": "the schema is int",
    "[": "not JSON",
    '{"a": NaN}': "NaN is not a JSON number",
    '{"type": "integer", "minimum": 1e999}': "too large",
    "false": "Unsatisfiable",
    '{"type": "hiccup"}': "Invalid type: hiccup",
    '{"type": 123}': "type must be a string or array",
    '{"type": "array", "uniqueItems": true}': "uniqueItems",
    '{"not": {}}': "not",
    '{"if": {}, "then": {}}': "if",
    '{"type": "string", "format": "nonsense"}': "Unknown format: nonsense",
    '{"type": "string", "pattern": "(?=a)b"}': "look-around",
    '{"type": "string", "pattern": "(a"}': "unclosed group",
    '{"$ref": "#/nope"}': "/nope",
    '{"$ref": "http://host.invalid/schema"}': "expected a reference into the schema",
    '{"$ref": "#anchor"}': "expected a reference into the schema",
    '{"$ref": "#"}': "no text can match",
    '{"const": "\\ud800"}': "hex escape",
    '{"multipleOf": 1000003}': "multipleOf 1000003",
    '{"allOf": [{"multipleOf": 3}, {"multipleOf": 7}]}': "more than one multipleOf",
    '{"enum": []}': "Unsatisfiable",
    '{"properties": 5}': "properties must be an object",
}


@pytest.mark.parametrize("source", REFUSED)
def test_a_schema_that_cannot_be_kept_is_refused_by_name(source: str) -> None:
    with pytest.raises(RequestError, match=r"^Failed to parse grammar: ") as info:
        json_schema(source)
    assert REFUSED[source] in str(info.value)


def test_errors_show_nothing_of_the_text_that_the_engine_gets() -> None:
    with pytest.raises(RequestError) as info:
        json_schema('{"type": "array", "uniqueItems": true}')
    assert "%llguidance" not in str(info.value)
    assert "x-guidance" not in str(info.value)


def test_the_order_of_properties_survives() -> None:
    prepared = prepare_schema('{"properties": {"z": {}, "a": {}, "m": {}}}')
    assert list(json.loads(prepared)["properties"]) == ["z", "a", "m"]
