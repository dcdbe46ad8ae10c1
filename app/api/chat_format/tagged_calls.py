"""Parses calls whose arguments stand in tags: Qwen3-Coder and Qwen3.5, GLM, Seed-OSS, MiniMax M2.

Text between tags becomes JSON: a string where the tool's schema wants one, told while it grows;
anything else is taken as JSON once it is complete, or as a string when it is none that fits.
"""

import json
from dataclasses import dataclass

from app.api.chat_format.reader import SPACE, Parse, Reader, Sink
from app.api.chat_format.shapes import TaggedCalls
from app.api.chat_format.tools import Tool, ToolUse, kind_of
from app.api.chat_format.writers import CallWriter

_MAX_NAME = 256
_STRING_ONLY = frozenset({"string"})


def parse_tagged_calls(
    reader: Reader, shape: TaggedCalls, calls: CallWriter, use: ToolUse, *, in_section: bool
) -> Parse[bool]:
    """Read the calls after the start mark, the end mark included; return whether there was one.

    `in_section` says that it was the section's mark that was read.
    """
    n_before = calls.n_calls
    go_on = not in_section or (yield from _next(reader, shape))
    while go_on:
        go_on = (yield from _Call(reader, shape, calls, use).parse()) and (
            yield from _next(reader, shape)
        )
    if shape.section_end:
        yield from reader.space()
        yield from reader.skip(shape.section_end)
    return calls.n_calls > n_before


def _next(reader: Reader, shape: TaggedCalls) -> Parse[bool]:
    yield from reader.space()
    return (yield from reader.skip(shape.start))


@dataclass(slots=True)
class _Call:
    """One call after its start mark."""

    reader: Reader
    shape: TaggedCalls
    calls: CallWriter
    use: ToolUse

    def parse(self) -> Parse[bool]:
        """Read the call; return whether it was complete."""
        shape = self.shape
        name_ends = tuple(mark for mark in (shape.name_end, shape.key_start, shape.end) if mark)
        name, mark = yield from self._word(name_ends)
        if not name or not mark or len(name) > _MAX_NAME or "\n" in name:
            return False
        self.reader.stop_tape()
        sink = self.calls.start(name)
        sink("{")
        complete = yield from self._arguments(mark, self.use.tool(name), sink)
        if complete:
            sink("}")
        return complete

    def _arguments(self, mark: str, tool: Tool | None, sink: Sink) -> Parse[bool]:
        shape, separator = self.shape, ""
        while True:
            if mark == shape.end:
                return True
            if mark != shape.key_start:
                mark = yield from self.reader.until((shape.key_start, shape.end), _nowhere)
                if not mark:
                    return False
                continue
            key, ended = yield from self._word((shape.key_end,))
            if not ended:
                return False
            sink(f"{separator}{_quoted(key)}: ")
            kinds = tool.kinds(key) if tool is not None else frozenset[str]()
            if not (yield from self._value(kinds, sink)):
                return False
            separator, mark = ", ", ""

    def _value(self, kinds: frozenset[str], sink: Sink) -> Parse[bool]:
        if self.shape.value_start:
            yield from self.reader.space()
            yield from self.reader.skip(self.shape.value_start)
        if self.shape.lines:
            yield from self.reader.skip("\n")
        if kinds == _STRING_ONLY:
            return (yield from self._string(sink))
        raw: list[str] = []
        ended = yield from self.reader.until((self.shape.value_end,), raw.append)
        text = "".join(raw)
        if self.shape.lines:
            text = text.removesuffix("\n")
        sink(_as_json(text, kinds))
        return bool(ended)

    def _string(self, sink: Sink) -> Parse[bool]:
        text = _StringValue(sink, holds_line=self.shape.lines)
        sink('"')
        ended = yield from self.reader.until((self.shape.value_end,), text.write)
        sink('"')
        return bool(ended)

    def _word(self, marks: tuple[str, ...]) -> Parse[tuple[str, str]]:
        word: list[str] = []
        mark = yield from self.reader.until(marks, word.append)
        return "".join(word).strip(SPACE), mark


@dataclass(slots=True)
class _StringValue:
    """Writes text as the inside of a JSON string, but for a line break at its end."""

    sink: Sink
    holds_line: bool
    held: str = ""

    def write(self, text: str) -> None:
        """Add text."""
        text, self.held = self.held + text, ""
        if self.holds_line and text.endswith("\n"):
            text, self.held = text[:-1], "\n"
        if text:
            self.sink(_quoted(text)[1:-1])


def _as_json(text: str, kinds: frozenset[str]) -> str:
    """Return text as JSON of one of these types, else as a string."""
    try:
        kind = kind_of(json.loads(text))
    except (ValueError, RecursionError):
        return _quoted(text)
    fits = kind in kinds or not kinds or "string" not in kinds
    return text.strip(SPACE) if fits else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _nowhere(text: str) -> None:
    del text
