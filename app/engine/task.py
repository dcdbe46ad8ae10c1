"""A request inside the engine: where it stands, its sampler, its text, its clock.

The engine thread owns it. `tokens` are the prompt and what was generated, less what a context shift
forgot; with the sampler's state they are all that a task needs to go on elsewhere, so a sequence
that had to leave the cache comes back by computing them again. Events go to the caller through
`emit`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from app.engine.output import LineLimits, TextAssembler
from app.engine.request import Event, GenerationRequest, Timings
from app.engine.token_sampler import TokenSampler
from app.sampling.logprobs import TokenLogprobs


class TaskState(Enum):
    """Where a task stands."""

    NEW = "new"
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Task:
    """One running request."""

    id: int
    request: GenerationRequest
    sampler: TokenSampler
    emit: Callable[[Event], None]
    assembler: TextAssembler
    limits: LineLimits
    state: TaskState = TaskState.NEW
    cancelled: bool = False
    truncated: bool = False
    n_cached: int = 0
    n_decoded: int = 0
    tokens: list[int] = field(default_factory=list)
    unsent_tokens: list[int] = field(default_factory=list)
    unsent_logprobs: list[TokenLogprobs] = field(default_factory=list)
    t_start: float = 0.0
    t_prompt_done: float = 0.0
    t_last: float = 0.0

    @property
    def n_prompt(self) -> int:
        """Number of prompt tokens."""
        return len(self.request.prompt)

    def n_remaining(self) -> int:
        """Tokens that may still be generated; -1 means no limit."""
        if self.request.n_predict < 0:
            return -1
        return max(0, self.request.n_predict - self.n_decoded)

    def timings(self) -> Timings:
        """Counts and times so far."""
        prompt_end = self.t_prompt_done or self.t_last or self.t_start
        return Timings(
            cache_n=self.n_cached,
            prompt_n=self.n_prompt - self.n_cached,
            prompt_ms=1e3 * (prompt_end - self.t_start),
            predicted_n=self.n_decoded,
            predicted_ms=1e3 * max(0.0, self.t_last - self.t_prompt_done),
        )


def now() -> float:
    """Seconds of a clock that never goes back."""
    return time.perf_counter()
