"""The short form of a fuzz run: a few seconds of each target, with fixed seeds.

`python -m tests.fuzz --minutes 10` is the long one; it prints how to repeat what it finds.
"""

import subprocess
import sys
from typing import Final

import pytest

from tests.fuzz import guards
from tests.helpers.assets import PROJECT_ROOT
from tests.helpers.native import native_library

RUNS: Final = {
    "worker-native": ("--target", "worker", "--rounds", "120"),
    "worker-native-two-threads": ("--target", "worker", "--rounds", "80", "--threads", "2"),
    "worker-portable": ("--target", "worker", "--rounds", "60", "--level", "portable"),
    "worker-reference": ("--target", "worker", "--rounds", "80", "--executor", "reference"),
    "server": ("--target", "server", "--rounds", "60"),
    "replies": ("--target", "replies", "--rounds", "80"),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flags", RUNS.values(), ids=RUNS)
def test_a_short_fuzz_run_finds_nothing(flags: tuple[str, ...]) -> None:
    native_library()
    command = [sys.executable, "-m", "tests.fuzz", "--minutes", "8", *flags]
    done = subprocess.run(
        command, cwd=PROJECT_ROOT, capture_output=True, text=True, errors="replace", check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "0 failures" in done.stdout
    if "worker" in flags:
        ran = next(line for line in done.stdout.splitlines() if " operations: " in line)
        # Damage must leave enough whole, or kernels would never be reached.
        assert int(ran.split()[1]) > 40, ran


def test_a_byte_behind_a_buffer_ends_the_process() -> None:
    code = "import ctypes as c; from tests.fuzz.guards import guarded as g; a = g({size}); {act}"
    read = "c.string_at(c.addressof(a) + {at}, 1)"
    for size, at, survives in ((24, 23, True), (24, 24, False), (4096, 4096, False)):
        command = [sys.executable, "-c", code.format(size=size, act=read.format(at=at))]
        done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, check=False)
        assert (done.returncode == 0) == survives, done.stderr


def test_a_byte_before_a_buffer_is_noticed() -> None:
    import ctypes

    array = guards.guarded(24)
    ctypes.memset(ctypes.addressof(array) - 1, 0, 1)
    del array
    assert [text for text in guards.violations if "24 bytes" in text]
    guards.violations.clear()
