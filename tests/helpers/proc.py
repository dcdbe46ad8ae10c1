"""What /proc tells of another process. Linux only."""

from pathlib import Path


def _status(folder: Path, name: str) -> int:
    for line in (folder / "status").read_text("ascii", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def private_bytes(pid: int) -> int:
    """Anonymous memory that the process holds (RssAnon)."""
    return _status(Path(f"/proc/{pid}"), "RssAnon") << 10


def n_threads(pid: int) -> int:
    """Number of threads."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def n_descriptors(pid: int) -> int:
    """Number of open file descriptors."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def processor_ticks(pid: int) -> int:
    """Ticks of processor time that all threads have used, a hundred a second."""
    # The name, field 2, may hold spaces; it ends with the last bracket.
    fields = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace").rpartition(")")[2]
    return sum(map(int, fields.split()[11:13]))


def n_wakeups(pid: int) -> int:
    """How often its threads have gone to sleep by themselves, and so been woken."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(_status(task, "voluntary_ctxt_switches") for task in tasks)
