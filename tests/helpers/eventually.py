"""Waiting for something that another thread or process is about to do."""

import threading
import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Return as soon as `condition()` holds; fail the test when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.005)
