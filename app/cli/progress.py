"""Progress of something long, on stderr: a bar on a terminal, one plain line per tenth elsewhere.

Used for downloads and for loading weights. Nothing is printed until the first report, so that work
which turns out to be done already stays silent.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TextIO

from app.cli.packaged_file import Progress

_STEPS = 10


@contextmanager
def progress_bar(label: str, stream: TextIO | None = None) -> Iterator[Progress]:
    """Yield a callback (done_bytes, total_bytes) that shows progress under the label."""
    out = stream if stream is not None else sys.stderr
    with ExitStack() as stack:
        yield _bar(label, stack) if out.isatty() else _lines(label, out)


def _bar(label: str, stack: ExitStack) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task(label, total=None)

    def report(done: int, total: int) -> None:
        if not bar.live.is_started:
            stack.enter_context(bar)
        bar.update(task, completed=done, total=total)

    return report


def _lines(label: str, out: TextIO) -> Progress:
    shown = -1

    def report(done: int, total: int) -> None:
        nonlocal shown
        step = done * _STEPS // total if total else _STEPS
        if step <= shown:
            return
        shown = step
        percent, mb = step * 100 // _STEPS, 1_000_000
        print(f"{label}: {percent}% of {total / mb:.1f} MB", file=out, flush=True)

    return report
