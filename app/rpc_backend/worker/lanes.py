"""Work that a client's connection does not wait for: a lane per device, jobs in order.

The thread that reads a client's requests checks a graph and hands it to the device's lane; the
lane's own thread runs it, so that data arrives and further graphs are checked meanwhile, and other
devices work. A buffer's `Event` is the last job that touches it; whoever reads or writes the buffer
waits for that and for nothing else. Waiting for a job that has not begun means to run it, and those
before it, which spares two changes of threads in each step of a single stream.

Jobs are given in by one thread. What they fail with stands in `Lanes.failures` before anybody who
waits for them goes on; the session tells the client of it.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from app.errors import LlamaServeError
from app.rpc_backend.wire.worker_core import Request

log = logging.getLogger(__name__)

MAX_JOBS: Final = 8
"""Jobs that may wait in a lane before the reader does."""

Report = Callable[[Exception], None]
"""Says what a request failed with."""

Work = Callable[[Report], None]
"""Does a job; may raise, or report later."""


def _nothing(report: Report) -> None:
    """What a job that is done has left to do."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a request failed with after the next ones had been read."""

    request: Request
    error: Exception


@dataclass(slots=True, eq=False)
class Job:
    """One piece of a lane's work."""

    lane: "Lane"
    request: Request
    work: Work
    on_drop: Callable[[], None]
    is_done: bool = False


@dataclass(slots=True, eq=False)
class Event:
    """Done when the last job that touches a buffer is."""

    job: Job | None = None

    def wait(self) -> None:
        """Wait for it, or run it."""
        job = self.job
        if job is not None:
            job.lane.finish(job)
            self.job = None


@dataclass(frozen=True, slots=True)
class Later:
    """What a handler leaves to a lane: the device, the work, the buffers that it touches, and what
    to do when the client leaves before the work has begun.
    """

    device: int
    work: Work
    events: Iterable[Event]
    on_drop: Callable[[], None] = lambda: None


class Lane:
    """The jobs of one device, in order. One thread submits, finishes and closes."""

    def __init__(self, name: str, owner: "Lanes") -> None:
        self._owner = owner
        lock = threading.Lock()
        self._has_work = threading.Condition(lock)
        self._has_changed = threading.Condition(lock)
        self._queue: deque[Job] = deque()
        self._is_busy = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"lane-{name}", daemon=True)

    def submit(self, job: Job) -> None:
        """Add a job, which begins when `start` is called or somebody waits for it; waits while too
        many are queued.
        """
        if len(self._queue) >= MAX_JOBS:
            self.start()
        with self._has_changed:
            while len(self._queue) >= MAX_JOBS:
                self._has_changed.wait()
            self._queue.append(job)

    def start(self) -> None:
        """Let the lane's own thread begin, if there is work for it."""
        with self._has_work:
            if not self._queue:
                return
            self._has_work.notify()
        if self._thread.ident is None:
            self._thread.start()

    def finish(self, job: Job) -> None:
        """Return when a job is done; what stands before it and itself are run here, unless the
        lane's thread is at it.
        """
        if job.is_done:
            return
        self._owner.start(but=self)
        while (head := self._take_unless_done(job)) is not None:
            self._do(head)
        self.start()

    def _take_unless_done(self, job: Job) -> Job | None:
        with self._has_changed:
            while self._is_busy and not job.is_done:
                self._has_changed.wait()
            return None if job.is_done else self._take()

    def _take(self) -> Job:
        self._is_busy = True
        return self._queue.popleft()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self._do(job)

    def _next(self) -> Job | None:
        with self._has_work:
            while self._is_busy or not self._queue:
                if self._is_closed:
                    return None
                self._has_work.wait()
            return self._take()

    def _do(self, job: Job) -> None:
        try:
            job.work(lambda error: self._owner.failed(job.request, error))
        except LlamaServeError as error:
            self._owner.failed(job.request, error)
        except Exception as error:
            log.exception("%s: %s failed", self._owner.peer, job.request.command.number.name)
            self._owner.failed(job.request, error)
        finally:
            with self._has_changed:
                # Its buffers' events may know the job for long, but need not keep its graph.
                job.is_done, job.work = True, _nothing
                self._is_busy = False
                self._has_changed.notify_all()
                if self._queue:
                    self._has_work.notify()

    def close(self) -> None:
        """Drop what has not begun and make the thread end after what has."""
        with self._has_work:
            dropped = list(self._queue)
            for job in dropped:
                job.is_done, job.work = True, _nothing
            self._queue.clear()
            self._is_closed = True
            self._has_work.notify_all()
        for job in dropped:
            job.on_drop()

    def join(self) -> None:
        """Wait for the thread's end."""
        if self._thread.ident is not None:
            self._thread.join()


@dataclass(slots=True)
class Lanes:
    """All lanes of one client, named after it."""

    peer: str
    failures: deque[Failure] = field(default_factory=deque)
    on_failure: Callable[[], None] = lambda: None
    """Called by whichever thread noted one."""
    _lanes: dict[int, Lane] = field(default_factory=dict)
    _resting: list[Lane] = field(default_factory=list)

    def submit(self, request: Request, later: Later) -> None:
        """Leave a request's work to its device's lane; see `start`."""
        lane = self._lanes.get(later.device)
        if lane is None:
            lane = Lane(f"{later.device}-{self.peer}", self)
            self._lanes[later.device] = lane
        job = Job(lane, request, later.work, later.on_drop)
        lane.submit(job)
        for event in later.events:
            event.job = job
        if lane not in self._resting:
            self._resting.append(lane)

    def start(self, but: Lane | None = None) -> None:
        """Let lanes with new jobs begin, `but` one, whose jobs the caller runs."""
        if self._resting:
            for lane in self._resting:
                if lane is not but:
                    lane.start()
            self._resting.clear()

    def failed(self, request: Request, error: Exception) -> None:
        """Note what a request failed with; any thread may call."""
        self.failures.append(Failure(request, error))
        self.on_failure()

    def close(self) -> None:
        """Drop what has not begun and wait for what has."""
        for lane in self._lanes.values():
            lane.close()
        for lane in self._lanes.values():
            lane.join()
