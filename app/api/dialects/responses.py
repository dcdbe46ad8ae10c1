"""OpenAI's Responses: see to_json_oaicompat_resp and its stream form in server-task.cpp.

A stream is response.created, response.in_progress, the events of each output item, then
response.completed; every event carries its type as its name and a sequence number. An answer that
ran into its limit ends with response.completed as well, as llama-server's does, but its status is
`incomplete` and it says why. A whole answer is the last event's response.
"""

import time
from collections.abc import Sequence

from app.api.chat_format.parser import ParseOptions
from app.api.dialects.base import Answer, Told, progress_json
from app.api.dialects.blocks import BlockEvent, BlockKind, Blocks, Grown
from app.api.dialects.response_items import Items
from app.api.json_value import Json, JsonObject
from app.api.shapes import new_id, timings_json
from app.api.transcript import Transcript
from app.engine.request import Finished, Piece, PromptProgress, StopReason
from app.sampling.logprobs import TokenLogprobs


class ResponsesDialect:
    """Events of OpenAI's stream, answers of object `response`; there is one choice.

    `echo` are the fields of the request that every response repeats.
    """

    says_done = False
    names_events = True

    def __init__(self, answer: Answer, parsing: ParseOptions, echo: JsonObject) -> None:
        self._answer = answer
        self._echo = echo
        self._id = new_id("resp_")
        self._blocks = Blocks(parsing)
        self._items = Items()
        self._untold: list[TokenLogprobs] = []
        self._n_events = 0

    def chunks(
        self, transcripts: Sequence[Transcript], index: int, event: Told
    ) -> list[JsonObject]:
        transcript = transcripts[index]
        events = self._beginning()
        match event:
            case PromptProgress():
                events = events or [self._progress()]
                events[-1]["prompt_progress"] = progress_json(event)
            case Piece():
                events += self._grow(event)
            case Finished():
                events += self._told(self._blocks.finish(event.reason))
                events.append(self._completed(transcript))
        is_timed = isinstance(event, Finished) or self._answer.options.timings_per_token
        if events and is_timed and transcript.timings is not None:
            events[-1]["timings"] = timings_json(transcript.timings)
        return self._numbered(events)

    def closing(self, transcripts: Sequence[Transcript]) -> list[JsonObject]:
        return []

    def whole(self, transcripts: Sequence[Transcript]) -> Json:
        transcript = transcripts[0]
        self._told(self._blocks.feed(transcript.text))
        self._told(self._blocks.finish(transcript.end.reason))
        if transcript.logprobs:
            self._items.add_logprobs(self._answer.probabilities(transcript.logprobs))
        return self._final(transcript)

    def _beginning(self) -> list[JsonObject]:
        """The stream's first events, the first time that they are asked for."""
        if self._n_events:
            return []
        created: JsonObject = {"type": "response.created", "response": self._begun()}
        return [created, self._progress()]

    def _progress(self) -> JsonObject:
        return {"type": "response.in_progress", "response": self._begun()}

    def _begun(self) -> JsonObject:
        return self._response("in_progress", [])

    def _grow(self, piece: Piece) -> list[JsonObject]:
        self._untold += piece.logprobs
        return self._told(self._blocks.feed(piece.text))

    def _told(self, changes: list[BlockEvent]) -> list[JsonObject]:
        """The events for changes; log-probabilities wait for text that is told."""
        events: list[JsonObject] = []
        for change in changes:
            logprobs: list[Json] = []
            if isinstance(change, Grown):
                logprobs = self._answer.probabilities(self._untold)
                self._untold.clear()
            events += self._items.events(change, logprobs)
        return events

    def _completed(self, transcript: Transcript) -> JsonObject:
        return {"type": "response.completed", "response": self._final(transcript)}

    def _final(self, transcript: Transcript) -> JsonObject:
        end = transcript.end
        is_cut = end.reason is StopReason.LIMIT
        if is_cut:
            self._items.break_off()
        response = self._response("incomplete" if is_cut else "completed", [*self._items.all])
        response["usage"] = self._usage(end)
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            response["completed_at"] = int(time.time())
        return response

    def _response(self, status: str, output: list[Json]) -> JsonObject:
        sampling = self._answer.options.sampling
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._answer.created,
            "status": status,
            "model": self._answer.model,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "usage": None,
            **self._echo,
        }

    def _usage(self, end: Finished) -> JsonObject:
        """Token counts; reasoning counts as its text would in a prompt."""
        ends = self._blocks.closed
        thoughts = [end.text for end in ends if end.block.kind is BlockKind.REASONING]
        encode = self._answer.tokenizer.encode
        n_reasoning = sum(
            len(encode(text, add_special=False, parse_special=False)) for text in thoughts
        )
        return {
            "input_tokens": end.n_prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": end.n_cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": end.n_decoded,
            "output_tokens_details": {"reasoning_tokens": min(n_reasoning, end.n_decoded)},
            "total_tokens": end.n_prompt_tokens + end.n_decoded,
        }

    def _numbered(self, events: list[JsonObject]) -> list[JsonObject]:
        for event in events:
            event["sequence_number"] = self._n_events
            self._n_events += 1
        return events
