"""Lines in the log about connections that never became a client, few however many there are.

A port scanner, or a main host without the secret that tries again and again, would fill a disk. The
first ones of a period have a line each; the others are counted, and one line says how many.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

PERIOD_S: Final = 60.0
MOST_LINES: Final = 20


class Refusals:
    """Any thread may `tell`; the accept loop sums up once in a period and at the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._n = 0
        self._began_at = clock()

    def tell(self, level: int, text: str, *values: object) -> None:
        """Log a line as `Logger.log` does, or count it."""
        self.sum_up()
        with self._lock:
            self._n += 1
            has_line = self._n <= MOST_LINES
        if has_line:
            log.log(level, text, *values)

    def sum_up(self, *, early: bool = False) -> None:
        """Begin the next period, if this one is over or has to end `early`, and say how many lines
        were left out.
        """
        with self._lock:
            now = self._clock()
            seconds = now - self._began_at
            if seconds < PERIOD_S and not early:
                return
            n_left_out = self._n - MOST_LINES
            self._n, self._began_at = 0, now
        if n_left_out > 0:
            log.warning(
                "%d more connections within %.0f s that were not served", n_left_out, seconds
            )
