"""Progress on a stream that is no terminal: few plain lines."""

import io

from app.cli.progress import progress_bar


def test_each_tenth_is_one_line() -> None:
    out = io.StringIO()
    with progress_bar("model", out) as report:
        for done in range(0, 10_000_001, 10_000):
            report(done, 10_000_000)
    lines = out.getvalue().splitlines()
    assert lines == [f"model: {p}% of 10.0 MB" for p in range(0, 101, 10)]


def test_nothing_to_do_says_nothing() -> None:
    out = io.StringIO()
    with progress_bar("model", out):
        pass
    assert out.getvalue() == ""


def test_an_empty_total_counts_as_done() -> None:
    out = io.StringIO()
    with progress_bar("model", out) as report:
        report(0, 0)
    assert out.getvalue() == "model: 100% of 0.0 MB\n"
