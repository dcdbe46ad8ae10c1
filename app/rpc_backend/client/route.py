"""What is known of the way from one worker straight to another, for as long as this host is
connected to both.
"""

import threading
from collections import deque
from typing import Final

_MAX_NUMBERS: Final = 1024


class Route:
    """Whether a push has failed, after which none is tried again, and the numbers of the last
    deliveries, which may not have arrived yet. Any thread may call.
    """

    def __init__(self) -> None:
        self.is_broken = False
        self._lock = threading.Lock()
        self._numbers: deque[int] = deque(maxlen=_MAX_NUMBERS)

    def add(self, number: int) -> None:
        """Note a delivery that is about to be asked for."""
        with self._lock:
            self._numbers.append(number)

    def take(self, number: int, *, with_later: bool) -> list[int]:
        """Return a delivery that failed, and those behind it, unless that has been done already."""
        with self._lock:
            gone = [n for n in self._numbers if n == number or (with_later and n > number)]
            for n in gone:
                self._numbers.remove(n)
        return gone
