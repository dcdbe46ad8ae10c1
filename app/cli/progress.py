"""Progress of something long, on stderr: a bar on a terminal, plain lines elsewhere.

Used for downloads and for loading weights. Nothing is printed until the first report, so that work
which turns out to be done already stays silent.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, TextIO

from app.cli.packaged_file import Progress
from app.engine.load_progress import LoadProgress

Clock = Callable[[], float]
Show = Callable[[int, int, str], None]
"""Called with (bytes done, bytes in all, what else there is to say)."""

_STEPS: Final = 10
_QUIET_S: Final = 10.0
"""After so long without a line there is one, however little has been done."""
_MB: Final = 1_000_000


@contextmanager
def progress_bar(
    label: str, stream: TextIO | None = None, clock: Clock = time.monotonic
) -> Iterator[Progress]:
    """Yield a callback (done_bytes, total_bytes) that shows progress under the label."""
    with _shown(label, stream or sys.stderr, clock) as show:
        yield lambda done, total: show(done, total, "")


@contextmanager
def load_progress(
    label: str, stream: TextIO | None = None, clock: Clock = time.monotonic
) -> Iterator[Callable[[LoadProgress], None]]:
    """Yield a callback that shows how weights arrive; when all have, a summary is printed."""
    out = stream or sys.stderr
    last: LoadProgress | None = None
    began = ended = 0.0

    def report(progress: LoadProgress) -> None:
        nonlocal last, began, ended
        ended = clock()
        began = began if last else ended
        last = progress
        show(
            progress.done,
            progress.total,
            f"{_mb(progress.had)} there already" if progress.had else "",
        )

    with _shown(label, out, clock) as show:
        yield report
    if last and last.done == last.total:
        print(summary(label, last, ended - began), file=out, flush=True)


def summary(label: str, progress: LoadProgress, seconds: float) -> str:
    """Return what was loaded in how long, and what each device had not to be sent."""
    devices = ", ".join(
        f"{device.name} {_mb(device.total)}"
        + (f" ({_mb(device.had)} there already)" if device.had else "")
        for device in progress.devices
    )
    speed = _mb(progress.total / seconds) if seconds > 0 else "?"
    return f"{label}: {_mb(progress.total)} in {seconds:.1f} s, {speed}/s: {devices}"


@contextmanager
def _shown(label: str, out: TextIO, clock: Clock) -> Iterator[Show]:
    """Yield what shows; after the end nothing is shown any more."""
    is_over = False
    with ExitStack() as stack:
        show = _bar(label, stack) if out.isatty() else _lines(label, out, clock)
        try:
            yield lambda done, total, more: None if is_over else show(done, total, more)
        finally:
            is_over = True


def _bar(label: str, stack: ExitStack) -> Show:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[more]}"),
        console=Console(stderr=True),
    )
    task = bar.add_task(label, total=None, more="")

    def show(done: int, total: int, more: str) -> None:
        if not bar.live.is_started:
            stack.enter_context(bar)
        bar.update(task, completed=done, total=total, more=more)

    return show


def _lines(label: str, out: TextIO, clock: Clock) -> Show:
    shown, shown_at = -1, 0.0
    began: tuple[float, int] | None = None

    def show(done: int, total: int, more: str) -> None:
        nonlocal shown, shown_at, began
        now = clock()
        began = began or (now, done)
        step = done * _STEPS // total if total else _STEPS
        if step <= shown and now - shown_at < _QUIET_S:
            return
        shown, shown_at = step, now
        percent = done * 100 // total if total else 100
        parts = [f"{label}: {percent}% of {_mb(total)}", *_pace(now, done, total, began)]
        print(", ".join([*parts, more] if more else parts), file=out, flush=True)

    return show


def _pace(now: float, done: int, total: int, began: tuple[float, int]) -> list[str]:
    """Speed, and the time left while there is any."""
    seconds, n_bytes = now - began[0], done - began[1]
    if seconds <= 0 or n_bytes <= 0:
        return []
    speed = n_bytes / seconds
    left = [f"{_duration((total - done) / speed)} left"] if done < total else []
    return [f"{_mb(speed)}/s", *left]


def _mb(n_bytes: float) -> str:
    return f"{n_bytes / _MB:.1f} MB"


def _duration(seconds: float) -> str:
    if seconds < _QUIET_S:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
