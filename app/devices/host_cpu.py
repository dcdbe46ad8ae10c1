"""How many threads compute on this machine's processor when the user does not say."""

import os
from pathlib import Path
from typing import Final

_SMT: Final = Path("/sys/devices/system/cpu/smt/active")


def default_threads() -> int:
    """One thread per core that this process may use."""
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:
        usable = os.cpu_count() or 1
    try:
        shared = _SMT.read_text(encoding="ascii").strip() == "1"
    except OSError:
        shared = False
    return max(1, usable // 2 if shared else usable)
