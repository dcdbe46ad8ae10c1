"""llama-server's own form, of /completion: see to_json_non_oaicompat in server-task.cpp."""

from collections.abc import Sequence

from app.api.dialects.base import Answer, Told, progress_json
from app.api.generation_settings import generation_settings
from app.api.json_value import Json, JsonObject
from app.api.shapes import timings_json
from app.api.transcript import Transcript
from app.engine.request import Finished, Piece, PromptProgress

_SEPARATOR = "/"


class NativeDialect:
    """Chunks with `content` and `stop`; several choices make an array."""

    says_done = False
    names_events = False

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def chunks(
        self, transcripts: Sequence[Transcript], index: int, event: Told
    ) -> list[JsonObject]:
        transcript = transcripts[index]
        if isinstance(event, Finished):
            return [self._filtered(final_object(self._answer, transcript, streamed=True))]
        chunk: JsonObject = {
            "index": transcript.index,
            "content": event.text if isinstance(event, Piece) else "",
            "tokens": [*event.tokens] if isinstance(event, Piece) else [],
            "stop": False,
            "id_slot": _slot(transcript),
            "tokens_predicted": transcript.n_decoded,
            "tokens_evaluated": _n_prompt(transcript),
        }
        if self._answer.options.timings_per_token and transcript.timings is not None:
            chunk["timings"] = timings_json(transcript.timings)
        if isinstance(event, PromptProgress):
            chunk["prompt_progress"] = progress_json(event)
        elif event.logprobs:
            chunk["completion_probabilities"] = self._answer.probabilities(event.logprobs)
        return [chunk]

    def closing(self, transcripts: Sequence[Transcript]) -> list[JsonObject]:
        return []

    def whole(self, transcripts: Sequence[Transcript]) -> Json:
        objects = [self._filtered(final_object(self._answer, t)) for t in transcripts]
        return objects[0] if len(objects) == 1 else [*objects]

    def _filtered(self, whole: JsonObject) -> JsonObject:
        paths = self._answer.options.response_fields
        return pick_fields(whole, paths) if paths else whole


def final_object(answer: Answer, transcript: Transcript, *, streamed: bool = False) -> JsonObject:
    """Return everything about a finished generation; after a stream without what it has sent."""
    options, end = answer.options, transcript.end
    told: JsonObject = {
        "index": transcript.index,
        "content": "" if streamed else transcript.text,
        "tokens": [*transcript.tokens] if options.return_tokens and not streamed else [],
        "id_slot": _slot(transcript),
        "stop": True,
        "model": answer.model,
        "tokens_predicted": end.n_decoded,
        "tokens_evaluated": end.n_prompt_tokens,
        "generation_settings": generation_settings(
            options, answer.tokenizer.vocab, transcript.request.grammar
        ),
        "prompt": answer.tokenizer.decode(transcript.request.prompt, special=True),
        "has_new_line": end.has_new_line,
        "truncated": end.truncated,
        "stop_type": end.reason.value,
        "stopping_word": end.stopping_word,
        "tokens_cached": end.n_past,
        "timings": timings_json(end.timings),
    }
    if transcript.logprobs and not streamed:
        told["completion_probabilities"] = answer.probabilities(transcript.logprobs)
    return told


def pick_fields(whole: JsonObject, paths: Sequence[str]) -> JsonObject:
    """Return only these fields, each under its path as written; what is not there is left out."""
    picked: JsonObject = {}
    for path in paths:
        value: Json = whole
        for key in path.split(_SEPARATOR):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            picked[path] = value
    return picked


def _slot(transcript: Transcript) -> int:
    return -1 if transcript.started is None else transcript.started.id_slot


def _n_prompt(transcript: Transcript) -> int:
    return len(transcript.request.prompt)
