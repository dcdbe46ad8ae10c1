"""Loading through links of 1 Gbit/s: what a worker has is not sent, no worker waits for another.

Each worker is on a machine of its own behind a link of its own. Figures are ratios of loads in
one run on the same machine.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.measure import Record
from tests.helpers.capped_link import first_in_line, require_links, worker_behind_link
from tests.helpers.loading import Loaded, load, write_model
from tests.helpers.proc import peak_rss_bytes

WARM_SPEEDUP = 4.0
HELD_BYTES = 100_000_000
"""What a main host may have resident of a model of 335 MB that it sends: what waits to be sent, and
what is being hashed.
"""
SLOWER_NOT_SUM = 1.25
"""Two workers with half of the model each may take so much longer than half of the time of one with
all of it; one after the other they would take twice as long.
"""

TRIES = 4
"""Something else may take the processors for a while."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 335 MB in ten equal layers; the token embedding stays on the main host."""
    require_links()
    return write_model(tmp_path_factory.mktemp("models") / "large.gguf", 10, n_embd=1024)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[str]]:
    """Two workers, each behind a link of its own, with empty caches."""
    require_links()
    with first_in_line(), ExitStack() as stack:
        yield [stack.enter_context(worker_behind_link(i, tmp_path / str(i))) for i in range(2)]


def test_a_warm_worker_loads_at_least_four_times_faster_than_a_cold_one(
    model: Path, workers: list[str], tmp_path: Path, record_property: Record
) -> None:
    hashes = tmp_path / "hashes"
    cold = load(model, workers[:1], hash_folder=hashes, check=False)
    for _ in range(TRIES):
        warm = load(model, workers[:1], hash_folder=hashes)
        if cold.seconds > WARM_SPEEDUP * warm.seconds:
            break
    record_property("cold load through 1 Gbit/s, MB/s", cold.progress.total / cold.seconds / 1e6)
    record_property("warm load through 1 Gbit/s, MB/s", warm.progress.total / warm.seconds / 1e6)
    assert cold.progress.had == 0
    assert warm.is_right
    assert warm.progress.had > 0.99 * warm.progress.total
    assert cold.seconds > WARM_SPEEDUP * warm.seconds


def test_two_workers_load_in_the_time_of_the_slower_and_not_the_sum(
    model: Path, workers: list[str], tmp_path: Path, record_property: Record
) -> None:
    def load_afresh(rpc: list[str], split: tuple[float, ...] = ()) -> Loaded:
        for folder in (tmp_path / "0", tmp_path / "1"):
            for path in folder.iterdir():
                path.unlink()
        hashes = tmp_path / "hashes"
        loaded = load(model, rpc, hash_folder=hashes, tensor_split=split, check=False)
        assert loaded.progress.had == 0
        return loaded

    for _ in range(TRIES):
        both, one = load_afresh(workers, (1, 1)), load_afresh(workers[:1])
        shares = [device.total for device in both.progress.devices]
        slower = one.seconds * max(shares) / sum(shares)
        if both.seconds < SLOWER_NOT_SUM * slower:
            break
    record_property("one worker, seconds", one.seconds)
    record_property("two workers, seconds", both.seconds)
    assert both.seconds < SLOWER_NOT_SUM * slower


def forget_peak() -> int:
    """Begin to look for the peak anew; return what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_rss_bytes(os.getpid())


def test_a_main_host_holds_little_of_what_it_hashes_and_sends(
    model: Path, workers: list[str], record_property: Record
) -> None:
    before = forget_peak()
    assert load(model, workers[:1], check=False).progress.had == 0
    held = peak_rss_bytes(os.getpid()) - before
    record_property("bytes held while 335 MB were sent", held)
    assert held < HELD_BYTES
