"""What one generation has said so far: the state that events are folded into.

Stream and non-stream answers both come from it: a chunk is made of an event and the transcript
after it, a whole answer of the transcripts at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.api.errors import to_api_error
from app.engine.request import (
    Event,
    Failed,
    Finished,
    GenerationRequest,
    Piece,
    PromptProgress,
    Started,
    Timings,
)
from app.sampling.logprobs import TokenLogprobs


@dataclass(slots=True)
class Transcript:
    """One choice of an answer; `prompt_index` tells which of the request's prompts it continues.

    A stream has told its log-probabilities already, so it need not keep them.
    """

    index: int
    prompt_index: int
    request: GenerationRequest
    keeps_logprobs: bool = True
    started: Started | None = None
    finished: Finished | None = None
    timings: Timings | None = None
    n_decoded: int = 0
    n_pieces: int = 0
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Fold the next event in. Raises: the ApiError of a Failed event."""
        match event:
            case Started():
                self.started = event
            case PromptProgress():
                self.timings = progress_timings(event)
            case Piece():
                self.n_pieces += 1
                self.texts.append(event.text)
                self.tokens += event.tokens
                if self.keeps_logprobs:
                    self.logprobs += event.logprobs
                self.n_decoded = event.n_decoded
                self.timings = event.timings
            case Finished():
                self.finished = event
                self.n_decoded = event.n_decoded
                self.timings = event.timings
            case Failed():
                raise to_api_error(event.error)

    @property
    def text(self) -> str:
        """The whole text so far."""
        return "".join(self.texts)

    @property
    def end(self) -> Finished:
        """How the generation ended; only once it has."""
        assert self.finished is not None, "asked for the end of a running generation"
        return self.finished


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a whole request: each prompt counts once, every choice's answer counts."""

    prompt: int
    cached: int
    completion: int


def usage_of(transcripts: Sequence[Transcript]) -> Usage:
    """Return the counts of all choices of a request."""
    firsts = {t.prompt_index: t.end for t in reversed(transcripts)}
    return Usage(
        prompt=sum(end.n_prompt_tokens for end in firsts.values()),
        cached=sum(end.n_cached_tokens for end in firsts.values()),
        completion=sum(t.n_decoded for t in transcripts),
    )


def progress_timings(progress: PromptProgress) -> Timings:
    """Return the timings of a prompt that is still being processed."""
    return Timings(
        cache_n=progress.cache,
        prompt_n=progress.processed - progress.cache,
        prompt_ms=float(progress.time_ms) if progress.processed > progress.cache else 0.0,
        predicted_n=0,
        predicted_ms=0.0,
    )
