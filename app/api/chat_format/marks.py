"""Control tokens that carry the marks of a format: without them an answer could not be read."""

from app.api.chat_format import channels
from app.api.chat_format.shapes import (
    Channels,
    ChatFormat,
    JsonCalls,
    NamedCalls,
    TaggedCalls,
)
from app.tokenizer.base import Tokenizer, TokenType


def control_marks(chat_format: ChatFormat, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the control tokens in the format's marks, but for those that end a generation."""
    vocab = tokenizer.vocab
    found: set[int] = set()
    for mark in _marks(chat_format):
        found.update(tokenizer.encode(mark, add_special=False, parse_special=True))
    return frozenset(
        token
        for token in found
        if vocab.types[token] == TokenType.CONTROL and not tokenizer.is_eog(token)
    )


def _marks(chat_format: ChatFormat) -> list[str]:
    marks: list[str] = []
    if chat_format.reasoning is not None:
        marks += [chat_format.reasoning.start, chat_format.reasoning.end]
    match chat_format.calls:
        case JsonCalls() as calls:
            marks += [calls.start, calls.end, *calls.prefixes]
        case NamedCalls() as calls:
            marks += [calls.section_start, calls.start, calls.id_mark]
            marks += [calls.arguments_mark, calls.end, calls.section_end]
        case TaggedCalls() as calls:
            marks += [calls.section_start, calls.start, calls.name_end, calls.key_start]
            marks += [calls.key_end, calls.value_start, calls.value_end, calls.end]
            marks += [calls.section_end]
        case Channels():
            marks += channels.MARKS
        case _:
            pass
    return [mark for mark in marks if mark]
