"""Several running generations as one sequence of events, with the client's departure watched.

Owned by the task that handles one HTTP request. Whatever ends that task (the last event, an error,
the client gone, the server stopping) cancels every generation that still runs, so a slot is never
held for nobody.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from starlette.types import Receive

from app.engine.facade import Engine, Generation
from app.engine.request import Event, Failed, Finished, GenerationRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Numbered:
    """An event and the index of the generation that it came from."""

    index: int
    event: Event


class Feed:
    """Events of several generations in the order of their arrival."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.generations = generations
        self._arrived: deque[Numbered] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._running = len(generations)
        self._pumps = [
            asyncio.create_task(self._pump(i, generation))
            for i, generation in enumerate(generations)
        ]

    @property
    def is_over(self) -> bool:
        """Whether no event is left and none will come."""
        return self._running == 0 and not self._arrived

    async def next(self, timeout_s: float | None = None) -> Numbered | None:
        """Return the next event, or None when none came in time; only while not `is_over`."""
        if not self._arrived:
            await self._wait(timeout_s)
        return self._arrived.popleft() if self._arrived else None

    def close(self) -> None:
        """Cancel what still runs."""
        for pump, generation in zip(self._pumps, self.generations, strict=True):
            if not pump.done():
                pump.cancel()
                generation.cancel()

    async def _wait(self, timeout_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        alarm = None if timeout_s is None else loop.call_later(timeout_s, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if alarm is not None:
                alarm.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _put(self, index: int, event: Event) -> None:
        self._arrived.append(Numbered(index, event))
        self._wake()

    async def _pump(self, index: int, generation: Generation) -> None:
        """Move events over; a generation always ends with Finished or Failed here."""
        last: Event | None = None
        try:
            async for event in generation.events():
                last = event
                self._put(index, event)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            last = Failed(error)
            self._put(index, last)
        if not isinstance(last, Finished | Failed):
            self._put(index, Failed(RuntimeError("the generation ended without a result")))
        self._running -= 1
        if self._running == 0:
            self._wake()


@asynccontextmanager
async def open_feed(engine: Engine, requests: Sequence[GenerationRequest]) -> AsyncIterator[Feed]:
    """Submit all requests or none, and cancel what still runs on leaving.

    Raises: RequestError for a request that is wrong.
    """
    generations: list[Generation] = []
    try:
        for request in requests:
            generations.append(await engine.submit(request))
    except BaseException:
        for generation in generations:
            generation.cancel()
        raise
    feed = Feed(generations)
    try:
        yield feed
    finally:
        feed.close()


class ClientGoneError(Exception):
    """The client closed the connection before it had its answer."""


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancel the body of the `with` when the client goes; the request must have been read.

    Raises: ClientGoneError then.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if gone and task.uncancel() == 0:
            raise ClientGoneError from None
        raise
    finally:
        watcher.cancel()
