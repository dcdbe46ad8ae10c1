"""Main hosts come, load, compute and are killed, again and again: the worker stays as it was."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

import pytest

from tests.acceptance.measure import Record
from tests.fuzz.canary import Witness
from tests.helpers.assets import PROJECT_ROOT, asset
from tests.helpers.doomed_client import PHASES
from tests.helpers.eventually import eventually
from tests.helpers.proc import n_descriptors, n_threads, private_bytes
from tests.helpers.process import own_worker, running
from tests.helpers.stock_peers import stock_text_v8

CYCLES: Final = 200
WARM_CYCLES: Final = 20
# A client holds 8 MiB of weights: what one of them left behind would show.
MOST_GROWTH: Final = 6 << 20
# Memory that is given back goes back to the system at once: the C library's own rules hold up to
# 64 MiB of it, depending on what was given back before.
EAGER: Final = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 17),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 17),
}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in EAGER.items():
        monkeypatch.setenv(name, value)


class Doomed:
    """Starts clients and kills them."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None and process.stdout is not None
        self._orders: IO[str] = process.stdin
        self._news: IO[str] = process.stdout

    def live_and_die(self, phase: str, delay_s: float) -> None:
        """Start a client, and kill it so long after it has come to a phase."""
        self._orders.write(f"{phase}\n")
        self._orders.flush()
        pid = int(self._news.readline())
        signal.sigtimedwait([], delay_s)
        os.kill(pid, signal.SIGKILL)
        assert self._news.readline() == "gone\n"


@contextmanager
def doomed_clients(port: int) -> Iterator[Doomed]:
    command = [sys.executable, "-m", "tests.helpers.doomed_client", str(port)]
    process = subprocess.Popen(
        command, cwd=PROJECT_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Doomed(process)
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_200_clients_that_are_killed_leave_nothing_behind(record_property: Record) -> None:
    dice = random.Random(5)
    with own_worker() as (worker, port), doomed_clients(port) as doomed:
        pid = worker.process.pid
        witness = Witness(port)
        before = (n_threads(pid), n_descriptors(pid))
        warm = 0
        for cycle in range(CYCLES):
            doomed.live_and_die(PHASES[cycle % len(PHASES)], dice.random() * 0.02)
            if cycle == WARM_CYCLES:
                eventually(lambda: (n_threads(pid), n_descriptors(pid)) <= before)
                warm = private_bytes(pid)
        eventually(lambda: (n_threads(pid), n_descriptors(pid)) <= before)
        growth = private_bytes(pid) - warm
        record_property("bytes that 180 killed clients left", growth)
        assert growth < MOST_GROWTH
        witness.check()
        witness.close()
        assert worker.terminate() == 0, worker.output[-2000:]
        ends = [line for line in worker.output.splitlines() if "127.0.0.1:" in line]
        assert len(ends) >= CYCLES
        assert not [line for line in ends if "internal error" in line]


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.peer_v8
@pytest.mark.timeout(900)
def test_stock_clients_that_are_killed_leave_nothing_behind(record_property: Record) -> None:
    """A stock main host has a hundred megabytes of weights here when it dies."""
    dice = random.Random(6)
    path = asset("smollm2")
    client = [str(asset("peer_v8") / "client"), str(path)]
    with own_worker() as (worker, port):
        pid = worker.process.pid
        text = stock_text_v8(path, port, "1, 2, 3, 4,", 4)
        before, warm = (n_threads(pid), n_descriptors(pid)), private_bytes(pid)
        for _ in range(6):
            with running([*client, f"127.0.0.1:{port}", "1, 2, 3, 4,", "64"]):
                eventually(lambda: n_threads(pid) > before[0])
                signal.sigtimedwait([], dice.random() * 3)
            eventually(lambda: (n_threads(pid), n_descriptors(pid)) <= before)
        growth = private_bytes(pid) - warm
        record_property("bytes that 6 killed stock clients left", growth)
        assert growth < 2 * MOST_GROWTH
        assert stock_text_v8(path, port, "1, 2, 3, 4,", 4) == text
