"""A lock that goes to whoever has waited longest.

The executors of a device take it for each graph. Python's own locks go to whoever comes first when
they are free, which is nearly always the thread that has just let go: a client of a worker that
runs graph after graph would keep all others out. With this one it runs one graph between any two
of another's. Not reentrant.
"""

from collections import deque
from threading import Lock


class Turns:
    """Used as a context manager, by any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_taken = False
        self._waiting: deque[Lock] = deque()

    @property
    def n_waiting(self) -> int:
        """How many threads wait for their turn."""
        return len(self._waiting)

    def __enter__(self) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            turn = Lock()
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False
