"""A running request as its caller sees it."""

import asyncio
from collections.abc import AsyncIterator, Callable

from app.engine.post import EventPost
from app.engine.request import Event, Failed, Finished
from app.engine.task import Task


class LlamaGeneration:
    """A running request, seen from the asyncio loop that submitted it."""

    def __init__(self, task_id: int, post: EventPost, wake: Callable[[], None]) -> None:
        self.id = task_id
        self.task: Task | None = None
        self._post = post
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def emit(self, event: Event) -> None:
        """Deliver an event; called from the engine thread."""
        self._post.send(self._loop, self._queue.put_nowait, event)

    async def events(self) -> AsyncIterator[Event]:
        """Yield events in order until Finished or Failed."""
        while True:
            event = await self._queue.get()
            yield event
            if isinstance(event, Finished | Failed):
                return

    def cancel(self) -> None:
        """Stop as soon as possible; no event follows. Does nothing when it is over."""
        assert self.task is not None
        self.task.cancelled = True
        self._wake()
