"""OpenAI's chat: see to_json_oaicompat_chat and its stream form in llama.cpp's server-task.cpp.

A stream begins with one delta that has the role and a null content; later deltas have neither a
role nor an empty content. A tool call's id, type and name come once, then pieces of its arguments.
The log-probabilities of tokens that tell nothing yet wait for the next delta that does.
"""

from collections.abc import Sequence

from app.api.chat_format.answer import ParsedAnswer, parse_answer
from app.api.chat_format.events import (
    ArgumentsDelta,
    ChatEvent,
    ChatMessage,
    ContentDelta,
    ReasoningDelta,
    ToolCallStart,
)
from app.api.chat_format.parser import ParseOptions
from app.api.dialects.base import Answer, Told, finish_reason, progress_json
from app.api.dialects.native import final_object
from app.api.json_value import Json, JsonObject
from app.api.shapes import timings_json, usage_json
from app.api.transcript import Transcript, usage_of
from app.engine.request import Finished, Piece, PromptProgress, StopReason
from app.sampling.logprobs import TokenLogprobs
from app.version import BUILD_INFO


class ChatDialect:
    """Chunks of type `chat.completion.chunk`, answers of type `chat.completion`."""

    says_done = True
    names_events = False

    def __init__(self, answer: Answer, parsing: ParseOptions) -> None:
        self._answer = answer
        self._parsing = parsing
        self._parsed: dict[int, ParsedAnswer] = {}
        self._greeted: set[int] = set()
        self._untold: dict[int, list[TokenLogprobs]] = {}

    def chunks(
        self, transcripts: Sequence[Transcript], index: int, event: Told
    ) -> list[JsonObject]:
        transcript = transcripts[index]
        match event:
            case PromptProgress():
                return [self._progress_chunk(transcript, event)]
            case Piece():
                return self._piece_chunks(transcript, event)
            case Finished():
                return self._last_chunks(transcript)

    def closing(self, transcripts: Sequence[Transcript]) -> list[JsonObject]:
        if not self._answer.options.include_usage:
            return []
        chunk = self._object("chat.completion.chunk", [])
        chunk["usage"] = usage_json(usage_of(transcripts))
        chunk["timings"] = timings_json(transcripts[0].end.timings)
        return [chunk]

    def whole(self, transcripts: Sequence[Transcript]) -> Json:
        whole = self._object("chat.completion", [self._choice(t) for t in transcripts])
        whole["usage"] = usage_json(usage_of(transcripts))
        whole["timings"] = timings_json(transcripts[0].end.timings)
        if self._answer.options.verbose:
            whole["__verbose"] = final_object(self._answer, transcripts[0])
        return whole

    def _choice(self, transcript: Transcript) -> JsonObject:
        cut = transcript.end.reason is StopReason.LIMIT
        message = parse_answer(transcript.text, self._parsing, cut=cut)
        choice: JsonObject = {
            "finish_reason": _finish_reason(transcript, message),
            "index": transcript.index,
            "message": _message_json(message),
        }
        if transcript.logprobs:
            choice["logprobs"] = {"content": self._answer.probabilities(transcript.logprobs)}
        return choice

    def _progress_chunk(self, transcript: Transcript, progress: PromptProgress) -> JsonObject:
        chunk = self._delta(transcript, self._greeting(transcript) or {})
        if self._answer.options.timings_per_token and transcript.timings is not None:
            chunk["timings"] = timings_json(transcript.timings)
        chunk["prompt_progress"] = progress_json(progress)
        return chunk

    def _piece_chunks(self, transcript: Transcript, piece: Piece) -> list[JsonObject]:
        greeting = self._greeting(transcript)
        chunks = [] if greeting is None else [self._delta(transcript, greeting)]
        untold = self._untold.setdefault(transcript.index, [])
        untold += piece.logprobs
        deltas = [_delta_json(event) for event in self._answer_of(transcript).feed(piece.text)]
        if not deltas:
            return chunks
        logprobs = tuple(untold)
        untold.clear()
        told = [self._delta(transcript, deltas[0], logprobs=logprobs)]
        told += [self._delta(transcript, delta) for delta in deltas[1:]]
        if self._answer.options.timings_per_token:
            for chunk in told:
                chunk["timings"] = timings_json(piece.timings)
        return [*chunks, *told]

    def _last_chunks(self, transcript: Transcript) -> list[JsonObject]:
        greeting = self._greeting(transcript)
        chunks = [] if greeting is None else [self._delta(transcript, greeting)]
        parsed = self._answer_of(transcript)
        rest = parsed.finish(cut=transcript.end.reason is StopReason.LIMIT)
        chunks += [self._delta(transcript, _delta_json(event)) for event in rest]
        untold = tuple(self._untold.pop(transcript.index, ()))
        reason = _finish_reason(transcript, parsed.message)
        last = self._delta(transcript, {}, reason, untold)
        if not self._answer.options.include_usage:
            last["timings"] = timings_json(transcript.end.timings)
        if self._answer.options.verbose:
            last["__verbose"] = final_object(self._answer, transcript, streamed=True)
        return [*chunks, last]

    def _answer_of(self, transcript: Transcript) -> ParsedAnswer:
        parsed = self._parsed.get(transcript.index)
        if parsed is None:
            parsed = self._parsed[transcript.index] = ParsedAnswer(self._parsing)
        return parsed

    def _greeting(self, transcript: Transcript) -> JsonObject | None:
        """The first delta of a choice, the first time that it is asked for."""
        if transcript.index in self._greeted:
            return None
        self._greeted.add(transcript.index)
        return {"role": "assistant", "content": None}

    def _delta(
        self,
        transcript: Transcript,
        delta: JsonObject,
        finish_reason: str | None = None,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> JsonObject:
        choice: JsonObject = {
            "finish_reason": finish_reason,
            "index": transcript.index,
            "delta": delta,
        }
        if logprobs:
            choice["logprobs"] = {"content": self._answer.probabilities(logprobs)}
        return self._object("chat.completion.chunk", [choice])

    def _object(self, kind: str, choices: list[Json]) -> JsonObject:
        return {
            "choices": choices,
            "created": self._answer.created,
            "id": self._answer.id,
            "model": self._answer.model,
            "system_fingerprint": BUILD_INFO,
            "object": kind,
        }


def _finish_reason(transcript: Transcript, message: ChatMessage) -> str:
    reason = finish_reason(transcript.end)
    return "tool_calls" if message.tool_calls and reason == "stop" else reason


def _message_json(message: ChatMessage) -> JsonObject:
    told: JsonObject = {"role": "assistant", "content": message.content, "refusal": None}
    if message.reasoning:
        told["reasoning_content"] = message.reasoning
    if message.tool_calls:
        told["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return told


def _delta_json(event: ChatEvent) -> JsonObject:
    match event:
        case ContentDelta():
            return {"content": event.text}
        case ReasoningDelta():
            return {"reasoning_content": event.text}
        case ToolCallStart():
            function: JsonObject = {"name": event.name, "arguments": ""}
            return _call_delta(
                {"index": event.index, "id": event.id, "type": "function", "function": function}
            )
        case ArgumentsDelta():
            return _call_delta({"index": event.index, "function": {"arguments": event.text}})


def _call_delta(call: JsonObject) -> JsonObject:
    return {"tool_calls": [call]}
