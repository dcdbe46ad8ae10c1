"""A worker with nothing to do uses no processor time, however much it had to do before."""

import threading

from tests.fuzz.canary import Witness
from tests.helpers.proc import n_wakeups, processor_ticks
from tests.helpers.process import own_worker

WINDOW_S = 2.0
TRIES = 20
# A tick is 10 ms; what is left is a log line or a garbage collection.
MOST_TICKS = 1
MOST_WAKEUPS = 10


def test_an_idle_worker_uses_no_processor_time() -> None:
    with own_worker("-t", "2") as (worker, port):
        pid = worker.process.pid
        witness = Witness(port)
        for _ in range(20):
            witness.check()
        used = []
        for _ in range(TRIES):
            before = processor_ticks(pid), n_wakeups(pid)
            threading.Event().wait(WINDOW_S)
            used.append((processor_ticks(pid) - before[0], n_wakeups(pid) - before[1]))
            if used[-1][0] <= MOST_TICKS and used[-1][1] <= MOST_WAKEUPS:
                break
        else:
            raise AssertionError(f"ticks and wake-ups in {WINDOW_S:g} s each: {used}")
        witness.check()
        witness.close()
