"""JSON as this room sees it: one recursive type, a strict reader for what clients send, a writer.

The reader refuses what llama-server's refuses (NaN, lone surrogates, trailing text) and what could
hurt a server written in Python (deep nesting, integers of thousands of digits); each refusal is a
RequestError. The writer never emits NaN or infinities: they become null, as there.
"""

import json
import math
from typing import Final, TypeAlias

from app.errors import RequestError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = dict[str, Json]

MAX_DEPTH: Final = 128
"""Containers inside one another; JSON schemas that people write stay far below."""


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def parse_json(data: bytes) -> Json:
    """Return the value of a JSON document in UTF-8.

    Raises: RequestError saying what is wrong and where.
    """
    try:
        value: Json = json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise RequestError(f"request body is not UTF-8: {error.reason} at {error.start}") from error
    except RecursionError as error:
        raise RequestError(f"JSON is nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise RequestError(f"request body is not valid JSON: {error}") from error
    _check(value)
    return value


def parse_object(data: bytes) -> JsonObject:
    """Return the value of a JSON document that must be an object.

    Raises: RequestError.
    """
    value = parse_json(data)
    if not isinstance(value, dict):
        raise RequestError(f"request body must be a JSON object, not {type_name(value)}")
    return value


def dump_json(value: Json) -> bytes:
    """Return the value as compact UTF-8 JSON."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return dump_json(_without_nan(value))
    return text.encode("utf-8", "replace")


def type_name(value: Json) -> str:
    """Return JSON's name for the type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"


def _check(root: Json) -> None:
    """Refuse nesting beyond the limit and text that has no UTF-8 form."""
    level: list[Json] = [root]
    for _ in range(MAX_DEPTH + 1):
        below: list[Json] = []
        for value in level:
            match value:
                case list():
                    below += value
                case dict():
                    below += value
                    below += value.values()
                case str():
                    _check_text(value)
                case _:
                    pass
        if not below:
            return
        level = below
    raise RequestError(f"JSON is nested deeper than {MAX_DEPTH} levels")


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError("request body has a lone surrogate, which is no character") from error


def _without_nan(value: Json) -> Json:
    match value:
        case float() if not math.isfinite(value):
            return None
        case list():
            return [_without_nan(item) for item in value]
        case dict():
            return {key: _without_nan(item) for key, item in value.items()}
        case _:
            return value
