"""What a request wants its answer to look like: a grammar, a JSON schema, or nothing.

The engine checks the constraint itself when the request is submitted; here is only which field
counts.
"""

import json

from app.api import fields
from app.api.json_value import Json, JsonObject
from app.engine.request import Grammar, GrammarKind
from app.errors import RequestError

_ANY_OBJECT: JsonObject = {"type": "object"}


def read_constraint(body: JsonObject, default: Grammar | None) -> Grammar | None:
    """Return the constraint of a request: `grammar`, `json_schema` or `response_format`, else the
    default.

    Raises: RequestError when there are two, or a field is malformed.
    """
    grammar = fields.text(body, "grammar", "")
    schema = body.get("json_schema")
    wanted, formatted = _from_response_format(body, schema)
    if grammar and (schema is not None or wanted):
        raise RequestError("Cannot use both json_schema and grammar", "grammar")
    if grammar:
        return Grammar(GrammarKind.GBNF, grammar)
    if wanted:
        schema = formatted
    elif schema is None:
        return default
    return _json_grammar(schema)


def _from_response_format(body: JsonObject, schema: Json) -> tuple[bool, Json]:
    """Whether `response_format` asks for JSON, and by which schema."""
    form = fields.mapping(body, "response_format")
    kind = fields.text(form, "type", "")
    match kind:
        case "" | "text":
            return False, None
        case "json_object":
            if form.get("schema") is None and schema:
                return True, schema
            return True, form.get("schema")
        case "json_schema":
            return True, fields.mapping(form, "json_schema").get("schema")
        case _:
            raise RequestError(
                'response_format type must be one of "text", "json_object" or '
                f'"json_schema", but got: {kind}',
                "response_format",
            )


def _json_grammar(schema: Json) -> Grammar:
    """An absent or empty schema means any object."""
    if not isinstance(schema, dict | bool | None):
        fields.wrong_type("json_schema", schema, "an object")
    if schema is None or schema == {}:
        schema = dict(_ANY_OBJECT)
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False))
