"""A JSON schema as a graph of subschemas: which there are, and how each is combined with others.

A visit is one way of reaching a subschema. It is `joined` when the engine will intersect it with
others, and `open` when it is one part of an object that other parts describe too, so that what it
does not mention may still be mentioned there.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote

from app.sampling.grammar.limits import schema_refusal

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
Schema = dict[str, Json]

APPLICATORS: Final = ("$ref", "allOf", "anyOf", "oneOf")
OBJECT_KEYS: Final = ("properties", "patternProperties", "additionalProperties")
ARRAY_KEYS: Final = ("items", "prefixItems")
STRING_KEYS: Final = ("pattern", "format", "minLength", "maxLength")
_ANNOTATIONS: Final = (
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("discriminator", "type", "$comment", "$schema", "$id", "id", "$defs", "definitions"),
)
_MAX_VISITS: Final = 50_000
_ELEMENT: Final = "*"


class Visit(NamedTuple):
    """`name` is the property whose value the subschema describes, "" for the whole text."""

    schema: Schema
    open: bool
    joined: bool
    name: str


def visits(root: Schema) -> Iterator[Visit]:
    """Yield every way of reaching a subschema from the root that differs in more than its path.

    Raises: RequestError for a reference out of the document, or too many ways.
    """
    seen: set[tuple[int, bool, bool, str]] = set()
    waiting = [Visit(root, False, False, "")]
    while waiting:
        visit = waiting.pop()
        key = (id(visit.schema), visit.open, visit.joined, visit.name)
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > _MAX_VISITS:
            raise schema_refusal("the parts of the schema refer to one another too often")
        yield visit
        waiting.extend(_same_place(visit, root))
        waiting.extend(_inside(visit))


def is_part(visit: Visit) -> bool:
    """Return whether other subschemas describe the same object as this one."""
    schema = visit.schema
    applied = sum(key in schema for key in APPLICATORS)
    return visit.open or applied > 1 or (applied > 0 and any(key in schema for key in OBJECT_KEYS))


def _same_place(visit: Visit, root: Schema) -> Iterator[Visit]:
    """The subschemas that describe the same value."""
    schema = visit.schema
    alone = set(schema).issubset({*_ANNOTATIONS, *APPLICATORS})
    joined = visit.joined or not alone or sum(key in schema for key in APPLICATORS) > 1
    for key in APPLICATORS[1:]:
        members = _schemas(schema.get(key))
        every = key == "allOf" and len(members) > 1
        for member in members:
            yield Visit(member, is_part(visit) or every, joined or every, visit.name)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = _resolve(root, reference)
        if isinstance(target, dict):
            yield Visit(target, is_part(visit), joined, visit.name)


def _inside(visit: Visit) -> Iterator[Visit]:
    """The subschemas that describe values inside of the value."""
    schema = visit.schema
    joined = visit.joined or is_part(visit)
    for key in ("properties", "patternProperties"):
        properties = schema.get(key)
        if isinstance(properties, dict):
            for name, inner in properties.items():
                if isinstance(inner, dict):
                    yield Visit(inner, False, joined, name)
    for key in ("additionalProperties", *ARRAY_KEYS, "additionalItems"):
        for inner in _schemas(schema.get(key)):
            yield Visit(inner, False, joined, _ELEMENT)


def _schemas(value: Json) -> list[Schema]:
    """The schemas that a keyword holds, one or a list."""
    members = value if isinstance(value, list) else [value]
    return [member for member in members if isinstance(member, dict)]


def _resolve(root: Schema, reference: str) -> Json:
    """What a local reference points to; None when there is nothing, which the engine reports."""
    if reference != "#" and not reference.startswith("#/"):
        raise schema_refusal(f"$ref {reference!r}: expected a reference into the schema, '#/…'")
    target: Json = root
    for step in reference.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(name)
        elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target
