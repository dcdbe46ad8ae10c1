"""Free and total memory of this machine, as far as this process may use it; imports nothing heavy.

Called by the engine's placement and by the CPU device. Linux tells what can be had without swapping
(MemAvailable) and what a control group allows; elsewhere POSIX gives the total and half of it is
assumed to be free. Pages count from the moment that they are touched: what has been promised but
not touched yet is for the caller to subtract.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from app.devices.base import DeviceMemory

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


def host_memory() -> DeviceMemory:
    """Bytes free and in all."""
    fields = _kib_fields(PROC / "meminfo")
    if "MemAvailable" not in fields or "MemTotal" not in fields:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return DeviceMemory(free=total // 2, total=total)
    free, total = fields["MemAvailable"], fields["MemTotal"]
    limit = _cgroup_number("memory.max", "memory/memory.limit_in_bytes")
    if limit is not None:
        total = min(total, limit)
        free = min(free, max(0, limit - _cgroup_used()))
    return DeviceMemory(free, total)


def touched_bytes() -> int:
    """Private memory that this process has touched; 0 where it is not known."""
    return _kib_fields(PROC / "self/status").get("RssAnon", 0)


def cpu_name() -> str:
    """The processor's name as the kernel reports it."""
    for line in _lines(PROC / "cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return os.uname().machine


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return


def _kib_fields(path: Path) -> dict[str, int]:
    """Return the "name: number kB" lines of a file in bytes."""
    rows = (line.split() for line in _lines(path) if line.endswith(" kB"))
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows}


def _cgroup_number(*names: str) -> int | None:
    """Return the first number among files of version 2 and 1; a word such as "max" is no number."""
    for name in names:
        for line in _lines(CGROUP / name):
            if line.isdigit():
                return int(line)
    return None


def _cgroup_used() -> int:
    """Return what the group uses, less file pages that the kernel drops when it needs room: a model
    file that is mapped or copied is among them.
    """
    used = _cgroup_number("memory.current", "memory/memory.usage_in_bytes") or 0
    droppable = 0
    for name in ("memory.stat", "memory/memory.stat"):
        for line in _lines(CGROUP / name):
            if line.startswith(("inactive_file ", "total_inactive_file ")):
                droppable = max(droppable, int(line.split()[1]))
    return max(0, used - droppable)
