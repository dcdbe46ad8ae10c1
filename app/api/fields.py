"""Reads typed fields out of a request body, with llama-server's rules.

A JSON null is the same as an absent field. Whole numbers may be written as floats and the other way
round; booleans are no numbers. A value of the wrong type or outside its limits is a RequestError
that names the field.
"""

import math
from typing import Final, NoReturn

from app.api.json_value import Json, JsonObject, type_name
from app.errors import RequestError

INT32_MAX: Final = 2**31 - 1
MAX_TEXTS: Final = 1024


def wrong_type(name: str, value: Json, expected: str) -> NoReturn:
    """Raise the RequestError for a field of the wrong type."""
    raise RequestError(f"'{name}' must be {expected}, not {type_name(value)}", name)


def present(body: JsonObject, *names: str) -> str | None:
    """Return the first of the names whose value is neither absent nor null."""
    return next((name for name in names if body.get(name) is not None), None)


def boolean(body: JsonObject, name: str, default: bool) -> bool:
    """Return a boolean field. Raises: RequestError."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        wrong_type(name, value, "a boolean")
    return value


def text(body: JsonObject, name: str, default: str) -> str:
    """Return a text field. Raises: RequestError."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        wrong_type(name, value, "a string")
    return value


def as_integer(name: str, value: Json) -> int:
    """Return a whole number. Raises: RequestError."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        wrong_type(name, value, "an integer")
    return value


def integer(
    body: JsonObject, name: str, default: int, low: int = -INT32_MAX, high: int = INT32_MAX
) -> int:
    """Return an integer field within low to high. Raises: RequestError."""
    value = body.get(name)
    if value is None:
        return default
    number = as_integer(name, value)
    if not low <= number <= high:
        raise RequestError(f"'{name}' must be between {low} and {high}, not {number}", name)
    return number


def array(body: JsonObject, name: str) -> list[Json]:
    """Return an array field, or an empty one. Raises: RequestError."""
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        wrong_type(name, value, "an array")
    return value


def listed(value: Json) -> list[Json]:
    """Return an array as it is, and anything else as no items."""
    return value if isinstance(value, list) else []


def texts(body: JsonObject, name: str) -> tuple[str, ...]:
    """Return a field that is an array of up to MAX_TEXTS strings, or (). Raises: RequestError."""
    found: list[str] = []
    if len(array(body, name)) > MAX_TEXTS:
        raise RequestError(f"'{name}' has more than {MAX_TEXTS} items", name)
    for i, item in enumerate(array(body, name)):
        if not isinstance(item, str):
            wrong_type(f"{name}[{i}]", item, "a string")
        found.append(item)
    return tuple(found)


def mapping(body: JsonObject, name: str) -> JsonObject:
    """Return a field that is an object, or an empty one. Raises: RequestError."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        wrong_type(name, value, "an object")
    return value
