"""Brings events from the engine thread to the event loops that wait for them, out of the engine's
way.

Waking an event loop is a system call during which another thread takes the interpreter lock, and
the loop would keep it to write an answer while the engine has its next step to start. So the engine
only appends to a queue. The thread here comes to run when the engine lets go of the lock because a
device works, and then the loops write while it works. Events that are there together, as those of
all streams of a step, cost each loop one wake.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from threading import Thread

from app.engine.request import Event

log = logging.getLogger(__name__)

Loop = asyncio.AbstractEventLoop
Deliver = Callable[[Event], None]


class EventPost:
    """Delivers in order; `send` belongs to one thread, `close` comes when it has ended."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Loop, Deliver, Event] | None] = SimpleQueue()
        self._thread = Thread(target=self._main, name="event-post", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def send(self, loop: Loop, deliver: Deliver, event: Event) -> None:
        """Have `deliver(event)` called in `loop`."""
        self._queue.put((loop, deliver, event))

    def close(self, timeout: float) -> None:
        """Deliver what was sent and end the thread."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _main(self) -> None:
        while True:
            by_loop: dict[Loop, list[tuple[Deliver, Event]]] = {}
            letter = self._queue.get()
            while letter is not None:
                loop, deliver, event = letter
                by_loop.setdefault(loop, []).append((deliver, event))
                try:
                    letter = self._queue.get_nowait()
                except Empty:
                    break
            for loop, batch in by_loop.items():
                _wake(loop, batch)
            if letter is None:
                return


def _wake(loop: Loop, batch: list[tuple[Deliver, Event]]) -> None:
    try:
        loop.call_soon_threadsafe(_hand_over, batch)
    except RuntimeError:
        log.debug("an event loop is closed, %d events dropped", len(batch))


def _hand_over(batch: Iterable[tuple[Deliver, Event]]) -> None:
    for deliver, event in batch:
        deliver(event)
