"""What /proc tells of another process. Linux only."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def _status(folder: Path, name: str) -> int:
    for line in (folder / "status").read_text("ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def private_bytes(pid: int) -> int:
    """Anonymous memory that the process holds (RssAnon)."""
    return _status(Path(f"/proc/{pid}"), "RssAnon") << 10


def peak_rss_bytes(pid: int) -> int:
    """The most memory that it has had resident (VmHWM)."""
    return _status(Path(f"/proc/{pid}"), "VmHWM") << 10


def queued_seconds(pid: int) -> float:
    """How long the thread of it that waited most for a processor has done so, in all."""
    waits = [0.0]
    for folder in Path(f"/proc/{pid}/task").iterdir():
        # Threads end, and not every kernel counts this.
        with suppress(OSError):
            waits.append(int((folder / "schedstat").read_text().split()[1]) / 1e9)
    return max(waits)


def threads(pid: int) -> set[int]:
    """The numbers of its threads."""
    return {int(folder.name) for folder in Path(f"/proc/{pid}/task").iterdir()}


def n_threads(pid: int) -> int:
    """Number of threads."""
    return len(threads(pid))


def n_descriptors(pid: int) -> int:
    """Number of open file descriptors."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def processor_ticks(pid: int, among: Iterable[int] | None = None) -> int:
    """Ticks of processor time, a hundred a second, of all its threads or of some of them."""
    if among is None:
        return _ticks(Path(f"/proc/{pid}"))
    return sum(_ticks(Path(f"/proc/{pid}/task/{n}")) for n in among)


def _ticks(folder: Path) -> int:
    # The name, field 2, may hold spaces; it ends with the last bracket.
    fields = (folder / "stat").read_text("ascii", errors="replace").rpartition(")")[2]
    return sum(map(int, fields.split()[11:13]))


def n_wakeups(pid: int, among: Iterable[int] | None = None) -> int:
    """How often its threads, or some of them, have gone to sleep and so been woken."""
    tasks = (Path(f"/proc/{pid}/task/{n}") for n in (threads(pid) if among is None else among))
    return sum(_status(task, "voluntary_ctxt_switches") for task in tasks)
