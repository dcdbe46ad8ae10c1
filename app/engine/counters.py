"""The counters that /metrics shows; the engine thread writes, any thread reads a snapshot."""

from dataclasses import dataclass

from app.engine.facade import EngineStats, WorkerStats
from app.engine.step import StepPlan
from app.engine.task import Task


@dataclass(slots=True)
class Counters:
    """Totals since start; seconds, tokens, calls."""

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_seconds: float = 0.0
    predicted_tokens: int = 0
    predicted_seconds: float = 0.0
    n_decode: int = 0
    n_busy_slots: int = 0
    n_tokens_max: int = 0

    def add_step(self, plan: StepPlan, n_busy: int, seconds: float) -> None:
        """Count one step with `n_busy` slots at work."""
        self.n_decode += 1
        self.n_busy_slots += n_busy

    def add_prompt(self, task: Task) -> None:
        """Count a prompt that is done."""
        timings = task.timings()
        self.prompt_tokens += timings.prompt_n
        self.prompt_tokens_cached += timings.cache_n
        self.prompt_seconds += timings.prompt_ms / 1e3

    def add_predicted(self, task: Task) -> None:
        """Count the time of a generation that is done."""
        self.predicted_seconds += task.timings().predicted_ms / 1e3

    def snapshot(
        self, processing: int, deferred: int, workers: tuple[WorkerStats, ...]
    ) -> EngineStats:
        """The totals and the gauges of now."""
        return EngineStats(
            prompt_tokens=self.prompt_tokens,
            prompt_tokens_cached=self.prompt_tokens_cached,
            prompt_seconds=self.prompt_seconds,
            predicted_tokens=self.predicted_tokens,
            predicted_seconds=self.predicted_seconds,
            n_decode=self.n_decode,
            n_tokens_max=self.n_tokens_max,
            n_busy_slots=self.n_busy_slots,
            requests_processing=processing,
            requests_deferred=deferred,
            workers=workers,
        )
