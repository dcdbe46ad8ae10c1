"""Parses calls with the name between marks and JSON arguments: functionary 3.1, DeepSeek, Mistral
from Small 3.2 on, Kimi K2.
"""

from app.api.chat_format.json_text import copy_value
from app.api.chat_format.reader import SPACE, Parse, Reader
from app.api.chat_format.shapes import NamedCalls
from app.api.chat_format.writers import CallWriter

_MAX_NAME = 256


def parse_named_calls(
    reader: Reader, shape: NamedCalls, calls: CallWriter, *, in_section: bool
) -> Parse[bool]:
    """Read the calls after the start mark, the end mark included; return whether there was one.

    `in_section` says that it was the section's mark that was read.
    """
    n_before = calls.n_calls
    go_on = not in_section or (yield from _next(reader, shape))
    while go_on and (yield from _call(reader, shape, calls)):
        go_on = yield from _next(reader, shape)
    if shape.section_end:
        yield from reader.skip(shape.section_end)
    return calls.n_calls > n_before


def _next(reader: Reader, shape: NamedCalls) -> Parse[bool]:
    yield from reader.space()
    return (yield from reader.skip(shape.start))


def _call(reader: Reader, shape: NamedCalls, calls: CallWriter) -> Parse[bool]:
    marks = (shape.id_mark, shape.arguments_mark) if shape.id_mark else (shape.arguments_mark,)
    name, mark = yield from _word(reader, marks)
    identifier = ""
    if shape.id_mark and mark == shape.id_mark:
        identifier, mark = yield from _word(reader, (shape.arguments_mark,))
    if shape.id_prefix and (number := name.rpartition(":"))[0]:
        name, identifier = number[0], f"{shape.id_prefix}{name}"
    if not mark or not name or len(name) > _MAX_NAME:
        return False
    reader.stop_tape()
    sink = calls.start(name, identifier)
    yield from reader.space()
    if not (yield from copy_value(reader, sink, (shape.end,) if shape.end else ())):
        return False
    if shape.end:
        yield from reader.space()
        yield from reader.skip(shape.end.lstrip(SPACE))
    return True


def _word(reader: Reader, marks: tuple[str, ...]) -> Parse[tuple[str, str]]:
    """Return the text before the first mark, and the mark."""
    word: list[str] = []
    mark = yield from reader.until(marks, word.append)
    return "".join(word).strip(SPACE), mark
