"""The engine's counters in Prometheus' text form, with llama-server's names and types.

Dashboards know those names; what only a pool has goes by `llamaserve:`. Numbers keep full
precision. The two rate gauges speak of the time between two scrapes. Text follows
server_task_result_metrics::to_metrics in llama.cpp's tools/server/server-task.cpp.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from app.api.rate_window import RateWindow
from app.engine.facade import EngineStats, WorkerStats

CONTENT_TYPE: Final = "text/plain; version=0.0.4"

Read = Callable[[EngineStats], float]


@dataclass(frozen=True, slots=True)
class Row:
    """One metric: its name without the prefix, its help, and where its value comes from."""

    name: str
    help: str
    read: Read


COUNTERS: Final = (
    Row(
        "prompt_tokens_total",
        "Number of prompt tokens processed, excluding cached tokens",
        lambda s: s.prompt_tokens,
    ),
    Row(
        "prompt_tokens_cached_total",
        "Number of prompt tokens reused from the cache",
        lambda s: s.prompt_tokens_cached,
    ),
    Row("prompt_seconds_total", "Total time spent processing prompts", lambda s: s.prompt_seconds),
    Row(
        "tokens_predicted_total",
        "Number of generation tokens processed",
        lambda s: s.predicted_tokens,
    ),
    Row(
        "tokens_predicted_seconds_total",
        "Total time spent generating tokens",
        lambda s: s.predicted_seconds,
    ),
    Row("n_decode_total", "Total number of decode calls", lambda s: s.n_decode),
    Row(
        "spec_decode_num_draft_tokens_total",
        "Speculative: Total draft tokens generated",
        lambda s: 0,
    ),
    Row(
        "spec_decode_num_accepted_tokens_total",
        "Speculative: Total draft tokens accepted by the target model",
        lambda s: 0,
    ),
    Row(
        "spec_decode_num_drafts_total",
        "Speculative: Total speculative decoding verification steps",
        lambda s: 0,
    ),
)

GAUGES: Final = (
    Row("requests_processing", "Number of requests processing", lambda s: s.requests_processing),
    Row("requests_deferred", "Number of requests deferred", lambda s: s.requests_deferred),
    Row(
        "n_busy_slots_per_decode",
        "Average number of busy slots per decode call",
        lambda s: s.n_busy_slots / max(s.n_decode, 1),
    ),
)

WORKER_GAUGES: Final[tuple[tuple[str, str, Callable[[WorkerStats], float]], ...]] = (
    ("worker_up", "Whether the worker answers", lambda w: float(w.up)),
)
WORKER_COUNTERS: Final[tuple[tuple[str, str, Callable[[WorkerStats], float]], ...]] = (
    ("worker_sent_bytes", "Bytes sent to the worker", lambda w: w.bytes_sent),
    ("worker_received_bytes", "Bytes received from the worker", lambda w: w.bytes_received),
)

_LONGEST: Final = "llamacpp:n_tokens_max"


def render_metrics(stats: EngineStats, window: RateWindow) -> bytes:
    """Return the text of a scrape, and begin a new window."""
    text = generate_latest(_Snapshot([*_families(stats, window), *_worker_families(stats.workers)]))
    return text + _longest(stats)


def _longest(stats: EngineStats) -> bytes:
    """llama-server calls this one a counter although its name lacks `_total`, which the library
    would add.
    """
    return (
        f"# HELP {_LONGEST} Largest observed sequence length (prompt + generation)\n"
        f"# TYPE {_LONGEST} counter\n{_LONGEST} {stats.n_tokens_max}\n"
    ).encode()


def _families(stats: EngineStats, window: RateWindow) -> Iterator[Metric]:
    for row in COUNTERS:
        yield CounterMetricFamily(f"llamacpp:{row.name}", row.help, value=row.read(stats))
    prompt_rate, predicted_rate = window.rates(stats)
    yield GaugeMetricFamily(
        "llamacpp:prompt_tokens_seconds", "Average prompt throughput in tokens/s", prompt_rate
    )
    yield GaugeMetricFamily(
        "llamacpp:predicted_tokens_seconds",
        "Average generation throughput in tokens/s",
        predicted_rate,
    )
    for row in GAUGES:
        yield GaugeMetricFamily(f"llamacpp:{row.name}", row.help, value=row.read(stats))


def _worker_families(workers: Iterable[WorkerStats]) -> Iterator[Metric]:
    workers, labels = tuple(workers), ("worker", "endpoint")
    for name, help_text, read in WORKER_GAUGES:
        gauge = GaugeMetricFamily(f"llamaserve:{name}", help_text, labels=labels)
        for worker in workers:
            gauge.add_metric((worker.name, worker.endpoint), read(worker))
        yield gauge
    for name, help_text, read in WORKER_COUNTERS:
        counter = CounterMetricFamily(f"llamaserve:{name}", help_text, labels=labels)
        for worker in workers:
            counter.add_metric((worker.name, worker.endpoint), read(worker))
        yield counter


class _Snapshot(Collector):
    """Families that are there already, as the library wants them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
