"""OpenAI's chat: see to_json_oaicompat_chat and its stream form in llama.cpp's server-task.cpp.

A stream begins with one delta that has the role and a null content; later deltas have neither a
role nor an empty content. The log-probabilities of tokens that show no text yet wait for the next
delta that does.
"""

from collections.abc import Sequence

from app.api.dialects.base import Answer, Told, finish_reason, progress_json
from app.api.dialects.native import final_object
from app.api.json_value import Json, JsonObject
from app.api.shapes import timings_json, usage_json
from app.api.transcript import Transcript, usage_of
from app.engine.request import Finished, Piece, PromptProgress
from app.sampling.logprobs import TokenLogprobs
from app.version import BUILD_INFO


class ChatDialect:
    """Chunks of type `chat.completion.chunk`, answers of type `chat.completion`."""

    says_done = True

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
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
        choice: JsonObject = {
            "finish_reason": finish_reason(transcript.end),
            "index": transcript.index,
            "message": {"role": "assistant", "content": transcript.text, "refusal": None},
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
        if not piece.text:
            return chunks
        logprobs = tuple(untold)
        untold.clear()
        chunk = self._delta(transcript, {"content": piece.text}, logprobs=logprobs)
        if self._answer.options.timings_per_token:
            chunk["timings"] = timings_json(piece.timings)
        return [*chunks, chunk]

    def _last_chunks(self, transcript: Transcript) -> list[JsonObject]:
        greeting = self._greeting(transcript)
        chunks = [] if greeting is None else [self._delta(transcript, greeting)]
        untold = tuple(self._untold.pop(transcript.index, ()))
        last = self._delta(transcript, {}, finish_reason(transcript.end), untold)
        if not self._answer.options.include_usage:
            last["timings"] = timings_json(transcript.end.timings)
        if self._answer.options.verbose:
            last["__verbose"] = final_object(self._answer, transcript, streamed=True)
        return [*chunks, last]

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
