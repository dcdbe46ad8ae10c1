"""Rates over the time between two scrapes of /metrics; apart from the metrics library, which loads
late.
"""

from dataclasses import dataclass

from app.engine.facade import EngineStats


@dataclass(slots=True)
class RateWindow:
    """The counters at the last scrape, for the rates since then."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    predicted_tokens: int = 0
    predicted_seconds: float = 0.0

    def rates(self, stats: EngineStats) -> tuple[float, float]:
        """Return prompt and generated tokens per second since the last call."""
        prompt = _rate(
            stats.prompt_tokens - self.prompt_tokens, stats.prompt_seconds - self.prompt_seconds
        )
        predicted = _rate(
            stats.predicted_tokens - self.predicted_tokens,
            stats.predicted_seconds - self.predicted_seconds,
        )
        self.prompt_tokens, self.prompt_seconds = stats.prompt_tokens, stats.prompt_seconds
        self.predicted_tokens = stats.predicted_tokens
        self.predicted_seconds = stats.predicted_seconds
        return prompt, predicted


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
