"""Free and total memory of this machine, as far as this process may use it; imports nothing heavy.

Linux tells what can be had without swapping (MemAvailable) and what a control group allows;
elsewhere POSIX gives the total and half of it is assumed to be free.
"""

import os
from pathlib import Path

from app.devices.base import DeviceMemory

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def host_memory() -> DeviceMemory:
    """Bytes free and in all."""
    fields = _meminfo()
    if fields is None:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return DeviceMemory(free=total // 2, total=total)
    free, total = fields
    limit, used = _cgroup_number("memory.max"), _cgroup_number("memory.current")
    if limit is not None and used is not None:
        total = min(total, limit)
        free = min(free, max(0, limit - used))
    return DeviceMemory(free, total)


def _meminfo() -> tuple[int, int] | None:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if "kB" in line}
    if "MemAvailable" not in kib or "MemTotal" not in kib:
        return None
    return kib["MemAvailable"] << 10, kib["MemTotal"] << 10


def _cgroup_number(name: str) -> int | None:
    try:
        text = (CGROUP / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
