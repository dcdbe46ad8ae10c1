"""Anthropic's messages: see to_json_anthropic and its stream form in llama.cpp's server-task.cpp.

A stream is message_start, then for each block content_block_start, deltas and content_block_stop,
then message_delta and message_stop; each event carries its type as its name. Signatures of thinking
are empty, as nothing here could check one.
"""

from collections.abc import Sequence

from app.api.chat_format.parser import ParseOptions
from app.api.dialects.base import Answer, Told
from app.api.dialects.blocks import Block, BlockEvent, BlockKind, Blocks, Closed, Grown, Opened
from app.api.json_value import Json, JsonObject, parse_object
from app.api.transcript import Transcript
from app.engine.request import Finished, Piece, PromptProgress, StopReason
from app.errors import RequestError

_DELTAS = {
    BlockKind.REASONING: ("thinking_delta", "thinking"),
    BlockKind.TEXT: ("text_delta", "text"),
    BlockKind.CALL: ("input_json_delta", "partial_json"),
}
"""Kind of block → type of its deltas, and where a delta has its text."""


class MessagesDialect:
    """Events of Anthropic's stream, answers of type `message`; there is one choice."""

    says_done = False
    names_events = True

    def __init__(self, answer: Answer, parsing: ParseOptions) -> None:
        self._answer = answer
        self._blocks = Blocks(parsing)
        self._has_begun = False

    def chunks(
        self, transcripts: Sequence[Transcript], index: int, event: Told
    ) -> list[JsonObject]:
        transcript = transcripts[index]
        chunks = self._beginning(transcript)
        match event:
            case PromptProgress():
                return chunks
            case Piece():
                return chunks + _told(self._blocks.feed(event.text))
            case Finished():
                return chunks + _told(self._blocks.finish(event.reason)) + self._ending(event)

    def closing(self, transcripts: Sequence[Transcript]) -> list[JsonObject]:
        return []

    def whole(self, transcripts: Sequence[Transcript]) -> Json:
        transcript = transcripts[0]
        self._blocks.feed(transcript.text)
        self._blocks.finish(transcript.end.reason)
        return self._message(
            [_block_json(end.block, end.text) for end in self._blocks.closed],
            self._stop_json(transcript.end),
            _usage(transcript, transcript.end.n_decoded),
        )

    def _beginning(self, transcript: Transcript) -> list[JsonObject]:
        """The stream's first event, the first time that it is asked for."""
        if self._has_begun:
            return []
        self._has_begun = True
        unstopped: JsonObject = {"stop_reason": None, "stop_sequence": None}
        message = self._message([], unstopped, _usage(transcript, 0))
        return [{"type": "message_start", "message": message}]

    def _ending(self, end: Finished) -> list[JsonObject]:
        return [
            {
                "type": "message_delta",
                "delta": self._stop_json(end),
                "usage": {"output_tokens": end.n_decoded},
            },
            {"type": "message_stop"},
        ]

    def _message(self, content: list[Json], stop: JsonObject, usage: JsonObject) -> JsonObject:
        return {
            "id": self._answer.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._answer.model,
            **stop,
            "usage": usage,
        }

    def _stop_json(self, end: Finished) -> JsonObject:
        return {
            "stop_reason": _stop_reason(end, self._blocks.has_calls),
            "stop_sequence": end.stopping_word or None,
        }


def _stop_reason(end: Finished, has_calls: bool) -> str:
    if end.reason is StopReason.LIMIT:
        return "max_tokens"
    if has_calls:
        return "tool_use"
    return "stop_sequence" if end.reason is StopReason.WORD else "end_turn"


def _usage(transcript: Transcript, n_output: int) -> JsonObject:
    """Token counts; those of the prompt that were cached count apart."""
    started = transcript.started
    assert started is not None, "an answer was told of before it began"
    return {
        "cache_read_input_tokens": started.n_cached_tokens,
        "input_tokens": started.n_prompt_tokens - started.n_cached_tokens,
        "output_tokens": n_output,
    }


def _told(changes: list[BlockEvent]) -> list[JsonObject]:
    return [event for change in changes for event in _events(change)]


def _events(change: BlockEvent) -> list[JsonObject]:
    index = change.block.index
    match change:
        case Opened(block):
            return [
                {
                    "type": "content_block_start",
                    "index": index,
                    "content_block": _block_json(block, ""),
                }
            ]
        case Grown(block, text):
            kind, key = _DELTAS[block.kind]
            return [_delta(index, {"type": kind, key: text})]
        case Closed(block, _):
            stop: JsonObject = {"type": "content_block_stop", "index": index}
            if block.kind is not BlockKind.REASONING:
                return [stop]
            return [_delta(index, {"type": "signature_delta", "signature": ""}), stop]


def _delta(index: int, delta: JsonObject) -> JsonObject:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _block_json(block: Block, text: str) -> JsonObject:
    match block.kind:
        case BlockKind.REASONING:
            return {"type": "thinking", "thinking": text, "signature": ""}
        case BlockKind.TEXT:
            return {"type": "text", "text": text}
        case BlockKind.CALL:
            return {
                "type": "tool_use",
                "id": block.call_id,
                "name": block.name,
                "input": _arguments(text),
            }


def _arguments(text: str) -> JsonObject:
    """The arguments as an object; an empty one when they broke off."""
    try:
        return parse_object(text.encode())
    except RequestError:
        return {}
