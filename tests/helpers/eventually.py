"""Waiting for something that another thread or process is about to do."""

import threading
import time
from collections.abc import Callable
from typing import Final

# So long that only a defect makes a test wait for the end of it, however busy the machine is.
PATIENCE_S: Final = 60.0


def eventually(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Return as soon as `condition()` holds; fail the test when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.005)
