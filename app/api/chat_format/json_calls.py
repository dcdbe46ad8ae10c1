"""Parses calls written as JSON objects: Hermes, Qwen, Llama 3, Mistral, Command R and others."""

from dataclasses import dataclass, field

from app.api.chat_format.json_text import copy_value, decode_string, read_string, read_text
from app.api.chat_format.reader import Parse, Reader, Sink
from app.api.chat_format.shapes import JsonCalls
from app.api.chat_format.writers import CallWriter

_WRAPPER = "function"
"""Some models write OpenAI's form, with the call one level down."""


def parse_json_calls(
    reader: Reader, shape: JsonCalls, calls: CallWriter, names: frozenset[str] | None
) -> Parse[bool]:
    """Read the calls after the start mark, the end mark included; return whether there was one.

    `names` are the tools that may be called, None for any. What is read goes on the reader's tape
    until it is sure to be a call.
    """
    yield from reader.space()
    opened = shape.listed and (yield from reader.skip("["))
    n_before, go_on = calls.n_calls, True
    while go_on:
        n_started = calls.n_calls
        yield from reader.space()
        complete = yield from _JsonCall(reader, shape, calls, names).parse()
        if not complete and calls.n_calls > n_started and shape.end:
            # What is wrong within a call is no part of the answer either.
            yield from reader.until((shape.end,), _nowhere)
            return True
        yield from reader.space()
        go_on = complete and (yield from _separator(reader, shape))
    if opened:
        yield from reader.skip("]")
        yield from reader.space()
    yield from reader.skip(shape.end)
    return calls.n_calls > n_before


def _separator(reader: Reader, shape: JsonCalls) -> Parse[bool]:
    if (yield from reader.skip(",")):
        return True
    return not shape.start and (yield from reader.skip(";"))


@dataclass(slots=True)
class _JsonCall:
    """One object; arguments that come before the name wait for it."""

    reader: Reader
    shape: JsonCalls
    calls: CallWriter
    names: frozenset[str] | None
    name: str | None = None
    identifier: str | None = None
    sink: Sink | None = None
    waiting: list[str] = field(default_factory=list)

    def parse(self) -> Parse[bool]:
        """Read the object; return whether it was complete."""
        complete = yield from self._object()
        is_all = complete or not (yield from self.reader.peek(1))
        if self.sink is None and is_all and self._may_start():
            if complete and not self.waiting:
                self.waiting.append("{}")
            self._start()
        return complete and self.sink is not None

    def _object(self) -> Parse[bool]:
        if not (yield from self.reader.skip("{")):
            return False
        while True:
            yield from self.reader.space()
            if (yield from self.reader.skip("}")):
                return True
            key = yield from read_string(self.reader)
            yield from self.reader.space()
            if key is None or not self._is_likely(key) or not (yield from self.reader.skip(":")):
                return False
            yield from self.reader.space()
            if not (yield from self._value(key)):
                return False
            yield from self.reader.space()
            yield from self.reader.skip(",")

    def _is_likely(self, key: str) -> bool:
        """Whether the object may be a call. Without a mark before it, it may also be an answer."""
        return bool(self.shape.start) or key in {self.shape.name_key, *_KEYS}

    def _value(self, key: str) -> Parse[bool]:
        shape, first = self.shape, (yield from self.reader.peek(1))
        if key == shape.name_key and self.name is None:
            self.name = yield from read_string(self.reader)
            return self._may_start()
        if key in (shape.id_first, "id") and self.sink is None:
            self.identifier = yield from read_text(self.reader)
            return self.identifier is not None
        if key == shape.arguments_key or (key in _ARGUMENTS and first == "{"):
            return (yield from self._arguments())
        if key == _WRAPPER and first == "{":
            return (yield from self._object())
        return (yield from copy_value(self.reader, _nowhere))

    def _arguments(self) -> Parse[bool]:
        """Arguments are an object; some models write it into a string."""
        if self.name is not None and self.sink is None:
            self._start()
        sink = self.sink or self.waiting.append
        stops = (self.shape.end,) if self.shape.end else ()
        if (yield from self.reader.peek(1)) != '"':
            return (yield from copy_value(self.reader, sink, stops))
        raw: list[str] = []
        complete = yield from copy_value(self.reader, raw.append)
        if text := decode_string("".join(raw)) or "":
            sink(text)
        return complete

    def _may_start(self) -> bool:
        return self.name is not None and (self.names is None or self.name in self.names)

    def _start(self) -> None:
        assert self.name is not None, "a call begins when its name is known"
        self.reader.stop_tape()
        self.sink = self.calls.start(self.name, self.identifier)
        for text in self.waiting:
            self.sink(text)


_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("id", "type", _WRAPPER, *_ARGUMENTS)


def _nowhere(text: str) -> None:
    del text
