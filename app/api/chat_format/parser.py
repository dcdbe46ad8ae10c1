"""The parser of a whole answer: reasoning first, then content with calls in it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from app.api.chat_format.channels import parse_channels
from app.api.chat_format.events import ContentDelta, ReasoningDelta
from app.api.chat_format.json_calls import parse_json_calls
from app.api.chat_format.named_calls import parse_named_calls
from app.api.chat_format.reader import Parse, Reader, Session
from app.api.chat_format.recipients import parse_recipients
from app.api.chat_format.shapes import (
    CallShape,
    Channels,
    ChatFormat,
    JsonCalls,
    NamedCalls,
    ReasoningTags,
    Recipients,
    TaggedCalls,
)
from app.api.chat_format.tagged_calls import parse_tagged_calls
from app.api.chat_format.tools import ToolUse
from app.api.chat_format.writers import CallWriter, TextWriter
from app.api.shapes import new_id

_BARE_START = "\n{"


class Beginning(Enum):
    """Where in an answer the generated text begins."""

    FRESH = "fresh"
    REASONING = "reasoning"
    CONTENT = "content"


_NO_TOOLS: Final = ToolUse()


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """How to read one answer.

    `lead` is what the prompt holds of the reasoning already; it is told when reasoning stays in the
    content. `continues` says that there is text before the first that was not generated. Tools are
    looked for when `use` has any.
    """

    format: ChatFormat
    beginning: Beginning = Beginning.FRESH
    extracts_reasoning: bool = True
    lead: str = ""
    continues: bool = False
    use: ToolUse = _NO_TOOLS


def new_session(options: ParseOptions, make_id: Callable[[int], str] | None = None) -> Session:
    """Return a parser at the start of an answer; `make_id` makes ids of calls of a length."""
    if options.format.calls is None and options.format.reasoning is None:
        return Session(_plain)
    return Session(lambda reader: _Message(reader, options, make_id or _new_call_id).parse())


def _new_call_id(n_chars: int) -> str:
    return new_id("")[:n_chars]


def _plain(reader: Reader) -> Parse[None]:
    """Everything is content, told as it comes."""
    yield from reader.until((), lambda text: reader.emit(ContentDelta(text)))


class _Message:
    """One answer."""

    def __init__(
        self, reader: Reader, options: ParseOptions, make_id: Callable[[int], str]
    ) -> None:
        self._reader = reader
        self._options = options
        self._content = TextWriter(reader, ContentDelta)
        shape = options.format.calls
        id_chars = shape.id_chars if isinstance(shape, _WITH_IDS) else 32
        self._calls = CallWriter(reader, lambda: make_id(id_chars))

    def parse(self) -> Parse[None]:
        options, reader = self._options, self._reader
        shape = options.format.calls
        if isinstance(shape, Channels):
            yield from self._channels()
            return
        if isinstance(shape, Recipients) and options.beginning is not Beginning.CONTENT:
            yield from parse_recipients(reader, self._content, self._calls, options.use)
            return
        if options.format.reasoning is not None and options.beginning is not Beginning.CONTENT:
            yield from self._reasoning(options.format.reasoning)
        yield from self._answer(shape if options.use.tools else None)

    def _channels(self) -> Parse[None]:
        reader, options = self._reader, self._options
        reasoning = TextWriter(reader, ReasoningDelta) if options.extracts_reasoning else None
        if options.beginning is Beginning.REASONING:
            reader.put_back("<|channel|>analysis<|message|>")
        calls = self._calls if options.use.tools else None
        yield from parse_channels(reader, self._content, reasoning, calls)

    def _reasoning(self, tags: ReasoningTags) -> Parse[None]:
        """Read what the model thinks, where it does so."""
        reader, options = self._reader, self._options
        if not options.extracts_reasoning:
            if options.lead:
                self._content.write_all(options.lead)
            else:
                self._content.drop_space()
            return
        space = yield from reader.space()
        started = yield from reader.skip(tags.start)
        if not started and options.beginning is not Beginning.REASONING:
            self._content.drop_space()
            return
        reasoning = TextWriter(reader, ReasoningDelta)
        if options.continues and not started:
            reasoning.write(space)
        else:
            reasoning.drop_space()
        ends: tuple[str, ...] = (tags.end,)
        if options.format.calls_end_reasoning and options.use.tools:
            ends += _start_marks(options.format.calls)
        end = yield from reader.until(ends, reasoning.write)
        if end != tags.end:
            reader.put_back(end)
        self._content.drop_space()

    def _answer(self, shape: CallShape | None) -> Parse[None]:
        """Read content, and calls where the shape has them."""
        reader, content = self._reader, self._content
        starts = _start_marks(shape)
        wraps = self._options.format.wraps
        sink = content.write if starts or wraps else content.write_all
        if _BARE_START in starts:
            content.write((yield from reader.space()))
            yield from self._bare_call(shape)
        while mark := (yield from reader.until((*starts, *wraps), sink)):
            if mark in wraps:
                content.drop_space()
            elif mark == _BARE_START:
                content.write("\n")
                reader.put_back("{")
                yield from self._bare_call(shape)
            else:
                yield from self._call(shape, mark)
        content.flush()

    def _bare_call(self, shape: CallShape | None) -> Parse[None]:
        if (yield from self._reader.peek(1)) == "{":
            yield from self._call(shape, "")

    def _call(self, shape: CallShape | None, mark: str) -> Parse[None]:
        """Read a call, or what looked like one as content."""
        self._reader.start_tape()
        found = yield from self._parse_calls(shape, mark)
        text = mark + self._reader.stop_tape()
        if found:
            self._content.drop_space()
        elif text and not (mark and self._reader.is_cut_off):
            self._content.write(text)

    def _parse_calls(self, shape: CallShape | None, mark: str) -> Parse[bool]:
        reader, use = self._reader, self._options.use
        match shape:
            case JsonCalls():
                known = None if shape.start else use.names
                return (yield from parse_json_calls(reader, shape, self._calls, known))
            case NamedCalls():
                in_section = mark == shape.section_start
                return (
                    yield from parse_named_calls(reader, shape, self._calls, in_section=in_section)
                )
            case TaggedCalls():
                in_section = mark == shape.section_start
                return (
                    yield from parse_tagged_calls(
                        reader, shape, self._calls, use, in_section=in_section
                    )
                )
            case _:
                return False


_WITH_IDS = (JsonCalls, NamedCalls, TaggedCalls)


def _start_marks(shape: CallShape | None) -> tuple[str, ...]:
    """The marks at which a call may begin."""
    match shape:
        case JsonCalls():
            return (shape.start or _BARE_START, *shape.prefixes)
        case NamedCalls() | TaggedCalls():
            return tuple(mark for mark in (shape.section_start, shape.start) if mark)
        case _:
            return ()
