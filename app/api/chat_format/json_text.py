"""Reads JSON out of an answer piece by piece; what belongs to a value is handed on unchanged."""

import json
from collections.abc import Sequence
from typing import Final

from app.api.chat_format.reader import SPACE, Parse, Reader, Sink

_OPENING: Final = "{["
_CLOSING: Final = "}]"
_STRUCTURE: Final = ('"', "{", "}", "[", "]")
_IN_STRING: Final = ("\\", '"')
_AFTER_SCALAR: Final = ",}]" + SPACE


def copy_value(reader: Reader, sink: Sink, stops: Sequence[str] = ()) -> Parse[bool]:
    """Hand a JSON value to `sink`; return whether it was complete.

    A container also ends, incomplete, before any of the `stops` that stands outside strings.
    """
    first = yield from reader.peek(1)
    if first == '"':
        sink((yield from reader.read(1)))
        return (yield from _copy_string(reader, sink))
    if first and first in _OPENING:
        return (yield from _copy_container(reader, sink, stops))
    return (yield from _copy_scalar(reader, sink))


def read_string(reader: Reader) -> Parse[str | None]:
    """Return the string that comes next; None when there is none, or a broken one."""
    if not (yield from reader.skip('"')):
        return None
    raw = ['"']
    yield from _copy_string(reader, raw.append)
    return decode_string("".join(raw))


def read_text(reader: Reader) -> Parse[str | None]:
    """Return a string or number that comes next as text; None when there is neither."""
    if (yield from reader.peek(1)) == '"':
        return (yield from read_string(reader))
    raw: list[str] = []
    yield from _copy_scalar(reader, raw.append)
    return "".join(raw) or None


def decode_string(raw: str) -> str | None:
    """Return the value of a JSON string literal, or None when it is none."""
    try:
        value = json.loads(raw, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _copy_string(reader: Reader, sink: Sink) -> Parse[bool]:
    """Copy the rest of a string whose opening quote was read."""
    while True:
        mark = yield from reader.until(_IN_STRING, sink)
        if not mark:
            return False
        sink(mark)
        if mark == '"':
            return True
        if escaped := (yield from reader.read(1)):
            sink(escaped)


def _copy_container(reader: Reader, sink: Sink, stops: Sequence[str]) -> Parse[bool]:
    depth = 0
    while True:
        mark = yield from reader.until((*stops, *_STRUCTURE), sink)
        if mark in stops:
            reader.put_back(mark)
        if not mark or mark in stops:
            return False
        sink(mark)
        if mark == '"':
            yield from _copy_string(reader, sink)
        elif mark in _OPENING:
            depth += 1
        elif mark in _CLOSING:
            depth -= 1
            if depth == 0:
                return True


def _copy_scalar(reader: Reader, sink: Sink) -> Parse[bool]:
    is_there = False
    while (char := (yield from reader.peek(1))) and char not in _AFTER_SCALAR:
        sink((yield from reader.read(1)))
        is_there = True
    return is_there
