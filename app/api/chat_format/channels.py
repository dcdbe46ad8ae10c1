"""Parses the channels of gpt-oss.

An answer is a sequence of parts: a header with channel and recipient up to `<|message|>`, then a
body up to `<|end|>` or the next part. Bodies of the channel `analysis` are reasoning, those to a
function are arguments, those to a tool that nobody offered are left out, others are content.
"""

import re
from dataclasses import dataclass
from typing import Final

from app.api.chat_format.reader import Parse, Reader, Sink
from app.api.chat_format.writers import CallWriter, TextWriter

MARKS: Final = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>")
"""Control tokens that have to be seen."""

_CHANNEL: Final = "<|channel|>"
_MESSAGE: Final = "<|message|>"
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_HEADS: Final = ("<|channel|>", "<|start|>", " to=", "to=")
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS: Final = "functions."
_MAX_HEADER: Final = 512


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before a body."""

    channel: str
    recipient: str


def read_header(text: str) -> Header:
    """Return the channel named last, and the recipient, of the text before `<|message|>`."""
    channel = text.rpartition(_CHANNEL)[2].split("<|")[0].split() if _CHANNEL in text else []
    recipients = [name for name in _RECIPIENT.findall(text) if name != "assistant"]
    return Header(channel[0] if channel else "", recipients[-1] if recipients else "")


def parse_channels(
    reader: Reader,
    content: TextWriter,
    reasoning: TextWriter | None,
    calls: CallWriter | None,
) -> Parse[None]:
    """Read the whole answer. Without a place for reasoning it stays in the content, as written."""
    while True:
        if not (yield from reader.peek(1)):
            return
        if not (yield from _begins_header(reader)):
            yield from _body(reader, content.write_all)
            continue
        raw: list[str] = []
        if not (yield from reader.until((_MESSAGE,), raw.append)):
            return
        header = read_header("".join(raw))
        if header.recipient:
            yield from _call(reader, header, calls)
        elif header.channel != "analysis":
            yield from _body(reader, content.write_all)
        elif reasoning is not None:
            yield from _body(reader, reasoning.write)
            reasoning.drop_space()
        else:
            content.write_all(f"{''.join(raw)}{_MESSAGE}")
            content.write_all((yield from _body(reader, content.write_all)))


def _begins_header(reader: Reader) -> Parse[bool]:
    for head in _HEADS:
        if (yield from reader.peek(len(head))) == head:
            return True
    return False


def _body(reader: Reader, sink: Sink) -> Parse[str]:
    """Read a body and its end, and the role that begins the next part."""
    mark = yield from reader.until(_ENDS, sink)
    if mark != "<|start|>":
        yield from reader.skip("<|start|>")
    yield from reader.skip("assistant")
    return mark


def _call(reader: Reader, header: Header, calls: CallWriter | None) -> Parse[None]:
    if calls is None or not header.recipient.startswith(_FUNCTIONS):
        yield from _body(reader, _nowhere)
        return
    yield from reader.space()
    yield from _body(reader, calls.start(header.recipient.removeprefix(_FUNCTIONS)))


def _nowhere(text: str) -> None:
    del text
