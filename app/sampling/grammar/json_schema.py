"""JSON schemas as llguidance shall take them, with the meaning that they have in llama.cpp.

llguidance follows the standard and refuses what it cannot express. Settled here, as llama.cpp's
converter (common/json-schema-to-grammar.cpp) does it: an object with `properties` has no others
unless the schema says so; a list of item schemas is a tuple of exactly these; keywords for one type
imply the type; `oneOf` means `anyOf`; white space is at most one space, or one or two line breaks
with an indent. Schemas whose compilation could take minutes are refused.
"""

import json
from collections import defaultdict
from decimal import Decimal
from typing import Final, NoReturn

from app.sampling.grammar import limits
from app.sampling.grammar.limits import schema_refusal
from app.sampling.grammar.schema_walk import (
    APPLICATORS,
    ARRAY_KEYS,
    OBJECT_KEYS,
    STRING_KEYS,
    Json,
    Schema,
    Visit,
    is_part,
    visits,
)

_OPTIONS: Final[Schema] = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})",
    "coerce_one_of": True,
    "lenient": False,
    "json_allow_general_unicode_escapes": True,
}
_NAMES: Final = ("$id", "id", "$anchor", "$dynamicAnchor", "x-guidance")
"""Local references begin at the root of the document, and options are ours to set."""
_TYPE_KEYS: Final = (("object", OBJECT_KEYS), ("array", ARRAY_KEYS), ("string", STRING_KEYS))
_MAX_INTEGER: Final = 10**16 - 1
_VALUES: Final = frozenset(("enum", "const", "multipleOf"))
_EXPLICIT: Final = frozenset(("type", "enum", "const", "not", "if", *APPLICATORS))


def prepare_schema(source: str) -> str:
    """Return the schema as JSON text for llguidance.

    Raises: RequestError when it is no schema, or too large or intricate.
    """
    if len(source) > limits.MAX_SCHEMA_CHARS:
        raise schema_refusal(
            f"{len(source)} characters of JSON schema, expected at most {limits.MAX_SCHEMA_CHARS}"
        )
    try:
        schema: Json = json.loads(source, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise schema_refusal(f"the schema is not JSON: {error}") from error
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, dict):
        raise schema_refusal(f"the schema is {type(schema).__name__}, expected an object")
    _check_depth(schema)
    _prepare(schema)
    schema["x-guidance"] = _OPTIONS
    try:
        return json.dumps(schema, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise schema_refusal(f"the schema holds a number that is too large: {error}") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _check_depth(schema: Json) -> None:
    level: list[Json] = [schema]
    depth = 0
    while level:
        depth += 1
        if depth > limits.MAX_SCHEMA_DEPTH:
            raise schema_refusal(f"the schema nests more than {limits.MAX_SCHEMA_DEPTH} deep")
        inner: list[Json] = []
        for value in level:
            if isinstance(value, dict):
                inner.extend(value.values())
            elif isinstance(value, list):
                inner.extend(value)
        level = inner


def _prepare(root: Schema) -> None:
    found = list(visits(root))
    _check_joins(found)
    parts = {id(visit.schema) for visit in found if is_part(visit)}
    for schema in {id(visit.schema): visit.schema for visit in found}.values():
        _check_size(schema)
        for name in _NAMES:
            schema.pop(name, None)
        _fix_tuple(schema)
        if id(schema) not in parts:
            _imply_type(schema)
            _close(schema)
            _bound_integer(schema)


def _check_joins(found: list[Visit]) -> None:
    """The time to intersect patterns, or multiples, grows exponentially with their number."""
    patterns: defaultdict[str, set[int]] = defaultdict(set)
    multiples: defaultdict[str, set[int]] = defaultdict(set)
    for schema, _, joined, name in found:
        if joined and any(key in schema for key in ("pattern", "format", "patternProperties")):
            patterns[name].add(id(schema))
        if joined and "multipleOf" in schema:
            multiples[name].add(id(schema))
    if any(len(schemas) > limits.MAX_JOINED_PATTERNS for schemas in patterns.values()):
        raise schema_refusal(
            f"more than {limits.MAX_JOINED_PATTERNS} patterns and formats for one value are joined"
        )
    if any(len(schemas) > 1 for schemas in multiples.values()):
        raise schema_refusal("more than one multipleOf for one value is not supported")


def _check_size(schema: Schema) -> None:
    properties = schema.get("properties")
    if isinstance(properties, dict) and len(properties) > limits.MAX_PROPERTIES:
        raise schema_refusal(
            f"{len(properties)} properties of one object, expected at most {limits.MAX_PROPERTIES}"
        )
    multiple = schema.get("multipleOf")
    if isinstance(multiple, int | float) and not isinstance(multiple, bool):
        digits = int("".join(map(str, Decimal(str(multiple)).normalize().as_tuple().digits)))
        if digits > limits.MAX_MULTIPLE_OF:
            raise schema_refusal(
                f"multipleOf {multiple}: expected at most {limits.MAX_MULTIPLE_OF}, "
                "times a power of ten"
            )


def _fix_tuple(schema: Schema) -> None:
    """A list of item schemas, under either name, says what each item is and how many there are."""
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        schema["items"] = schema.pop("additionalItems", False)
    if isinstance(schema.get("prefixItems"), dict):
        schema.setdefault("items", schema.pop("prefixItems"))
    items = schema.get("prefixItems")
    if isinstance(items, list) and schema.setdefault("items", False) is False:
        schema.setdefault("minItems", len(items))


def _imply_type(schema: Schema) -> None:
    if _EXPLICIT.isdisjoint(schema):
        for type_name, keys in _TYPE_KEYS:
            # Allowing anything says nothing, not even that it is an object.
            if any(schema.get(key, True) is not True for key in keys):
                schema["type"] = type_name
                return


def _close(schema: Schema) -> None:
    if "properties" in schema and "patternProperties" not in schema:
        schema.setdefault("additionalProperties", False)


def _bound_integer(schema: Schema) -> None:
    """As many digits as a double keeps; a model that repeats itself ends after them."""
    if schema.get("type") == "integer" and _VALUES.isdisjoint(schema):
        if "exclusiveMinimum" not in schema:
            schema.setdefault("minimum", -_MAX_INTEGER)
        if "exclusiveMaximum" not in schema:
            schema.setdefault("maximum", _MAX_INTEGER)
