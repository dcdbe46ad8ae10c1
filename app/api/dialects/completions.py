"""OpenAI's completions: see to_json_oaicompat in llama.cpp's server-task.cpp.

`logprobs` has llama-server's `content` and, for clients that know OpenAI's older form, the four
arrays of that form beside it.
"""

from collections.abc import Sequence

from app.api.dialects.base import Answer, Told, finish_reason, progress_json
from app.api.dialects.native import final_object
from app.api.json_value import Json, JsonObject
from app.api.shapes import legacy_logprobs_json, timings_json, usage_json
from app.api.transcript import Transcript, usage_of
from app.engine.request import Finished, Piece, PromptProgress
from app.sampling.logprobs import TokenLogprobs
from app.version import BUILD_INFO


class CompletionsDialect:
    """Chunks and answers of object type `text_completion`."""

    says_done = True
    names_events = False

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def chunks(
        self, transcripts: Sequence[Transcript], index: int, event: Told
    ) -> list[JsonObject]:
        transcript = transcripts[index]
        if isinstance(event, Finished):
            return [self._last_chunk(transcripts, transcript)]
        text, logprobs = "", None
        if isinstance(event, Piece):
            text = event.text
            if event.logprobs:
                logprobs = self._logprobs(event.logprobs, len(transcript.text) - len(text))
        chunk = self._object([_choice(transcript, text, logprobs, None)])
        if self._answer.options.timings_per_token and transcript.timings is not None:
            chunk["timings"] = timings_json(transcript.timings)
        if isinstance(event, PromptProgress):
            chunk["prompt_progress"] = progress_json(event)
        return [chunk]

    def closing(self, transcripts: Sequence[Transcript]) -> list[JsonObject]:
        return []

    def whole(self, transcripts: Sequence[Transcript]) -> Json:
        choices: list[Json] = []
        for t in transcripts:
            logprobs = self._logprobs(t.logprobs, 0) if t.logprobs else None
            choices.append(_choice(t, t.text, logprobs, finish_reason(t.end)))
        whole = self._object(choices)
        whole["usage"] = usage_json(usage_of(transcripts))
        whole["timings"] = timings_json(transcripts[0].end.timings)
        if self._answer.options.verbose:
            whole["__verbose"] = final_object(self._answer, transcripts[0])
        return whole

    def _last_chunk(self, transcripts: Sequence[Transcript], transcript: Transcript) -> JsonObject:
        """The end of a choice; of several choices, the last one to end tells the usage of all."""
        chunk = self._object([_choice(transcript, "", None, finish_reason(transcript.end))])
        if all(t.finished for t in transcripts):
            chunk["usage"] = usage_json(usage_of(transcripts))
        chunk["timings"] = timings_json(transcript.end.timings)
        if self._answer.options.verbose:
            chunk["__verbose"] = final_object(self._answer, transcript, streamed=True)
        return chunk

    def _object(self, choices: list[Json]) -> JsonObject:
        return {
            "choices": choices,
            "created": self._answer.created,
            "model": self._answer.model,
            "system_fingerprint": BUILD_INFO,
            "object": "text_completion",
            "id": self._answer.id,
        }

    def _logprobs(self, entries: Sequence[TokenLogprobs], offset: int) -> JsonObject:
        legacy = legacy_logprobs_json(
            self._answer.tokenizer, entries, special=self._answer.special, offset=offset
        )
        return {"content": self._answer.probabilities(entries)} | legacy


def _choice(t: Transcript, text: str, logprobs: Json, finish_reason: str | None) -> JsonObject:
    return {
        "text": text,
        "index": t.index,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }
