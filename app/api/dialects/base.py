"""What a form of answer must offer, and what all of them know about the request."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.api.json_value import Json, JsonObject
from app.api.options import RequestOptions
from app.api.shapes import new_id, probabilities_json
from app.api.transcript import Transcript
from app.engine.request import Finished, Piece, PromptProgress, StopReason
from app.sampling.logprobs import TokenLogprobs
from app.tokenizer.base import Tokenizer

Told = PromptProgress | Piece | Finished
"""Events that a stream tells the client about."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Facts about one HTTP answer; `special` says whether control tokens are written out."""

    id: str
    created: int
    model: str
    options: RequestOptions
    tokenizer: Tokenizer
    special: bool

    def probabilities(self, entries: Sequence[TokenLogprobs]) -> list[Json]:
        """Return the log-probabilities as this request wants them."""
        return probabilities_json(
            self.tokenizer,
            entries,
            post_sampling=self.options.sampling.post_sampling_probs,
            special=self.special,
        )


def new_answer(model: str, options: RequestOptions, tokenizer: Tokenizer, special: bool) -> Answer:
    """Return a fresh answer, with an id and the time of now."""
    return Answer(new_id("chatcmpl-"), int(time.time()), model, options, tokenizer, special)


class Dialect(Protocol):
    """Turns events into chunks and transcripts into a whole answer."""

    @property
    def says_done(self) -> bool:
        """Whether a stream ends with `data: [DONE]`."""

    @property
    def names_events(self) -> bool:
        """Whether each event of a stream is named after its `type`."""

    def chunks(
        self, transcripts: Sequence[Transcript], index: int, event: Told
    ) -> list[JsonObject]:
        """Return the chunks for an event of the choice at `index`, which holds it already."""

    def closing(self, transcripts: Sequence[Transcript]) -> list[JsonObject]:
        """Return the chunks that follow when every choice has ended."""

    def whole(self, transcripts: Sequence[Transcript]) -> Json:
        """Return the body of an answer that is not streamed."""


def finish_reason(end: Finished) -> str:
    """Return OpenAI's word for why a generation ended."""
    return "length" if end.reason is StopReason.LIMIT else "stop"


def progress_json(progress: PromptProgress) -> JsonObject:
    """Return the `prompt_progress` object."""
    return {
        "total": progress.total,
        "cache": progress.cache,
        "processed": progress.processed,
        "time_ms": int(progress.time_ms),
    }
