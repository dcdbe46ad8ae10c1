"""Progress on a stream that is no terminal: few plain lines, and a summary of a load."""

import io
from itertools import count

from app.cli.progress import load_progress, progress_bar
from app.engine.load_progress import DeviceLoad, LoadProgress

MB = 1_000_000


def ticking() -> "count[float]":
    """A clock that is a second later each time."""
    return count(100.0)


def test_each_tenth_is_one_line_with_speed_and_time_left() -> None:
    out, clock = io.StringIO(), ticking()
    with progress_bar("model", out, lambda: next(clock)) as report:
        for done in range(0, 10 * MB + 1, MB // 2):
            report(done, 10 * MB)
    lines = out.getvalue().splitlines()
    assert lines[0] == "model: 0% of 10.0 MB"
    assert lines[1] == "model: 10% of 10.0 MB, 0.5 MB/s, 18 s left"
    assert lines[6] == "model: 60% of 10.0 MB, 0.5 MB/s, 8.0 s left"
    assert lines[10] == "model: 100% of 10.0 MB, 0.5 MB/s"
    assert len(lines) == 11


def test_a_slow_load_is_heard_of_between_tenths() -> None:
    out, clock = io.StringIO(), ticking()
    with progress_bar("model", out, lambda: next(clock)) as report:
        for done in range(21):
            report(done * MB, 1000 * MB)
    assert out.getvalue().splitlines() == [
        "model: 0% of 1000.0 MB",
        "model: 1% of 1000.0 MB, 1.0 MB/s, 16 min 30 s left",
        "model: 2% of 1000.0 MB, 1.0 MB/s, 16 min 20 s left",
    ]


def test_nothing_to_do_says_nothing() -> None:
    out = io.StringIO()
    with progress_bar("model", out):
        pass
    with load_progress("model", out):
        pass
    assert out.getvalue() == ""


def test_an_empty_total_counts_as_done() -> None:
    out = io.StringIO()
    with progress_bar("model", out) as report:
        report(0, 0)
    assert out.getvalue() == "model: 100% of 0.0 MB\n"


def loaded(sent: int, had: int) -> LoadProgress:
    """Two devices of 10 MB; the first has all, the second so many megabytes."""
    return LoadProgress(
        (
            DeviceLoad("RPC0", 10 * MB, 10 * MB),
            DeviceLoad("RPC1", 10 * MB, sent * MB, had * MB),
        )
    )


def test_a_load_tells_what_was_had_and_ends_with_a_summary_of_each_device() -> None:
    out, clock = io.StringIO(), ticking()
    with load_progress("weights", out, lambda: next(clock)) as report:
        report(loaded(0, 0))
        report(loaded(0, 6))
        report(loaded(4, 6))
    lines = out.getvalue().splitlines()
    assert lines[1] == "weights: 80% of 20.0 MB, 3.0 MB/s, 1.3 s left, 6.0 MB there already"
    assert lines[-1] == (
        "weights: 20.0 MB in 4.0 s, 5.0 MB/s: RPC0 10.0 MB, RPC1 10.0 MB (6.0 MB there already)"
    )


def test_a_load_that_ends_early_has_no_summary_and_later_reports_are_not_shown() -> None:
    out = io.StringIO()
    with load_progress("weights", out) as report:
        report(loaded(0, 6))
    report(loaded(4, 6))
    assert len(out.getvalue().splitlines()) == 1
