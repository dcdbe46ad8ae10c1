"""Tensors on their way from this worker straight to others.

A lane reads the bytes and goes on; a thread per target connects, keeps the connection and delivers
in order. How another worker is reached is not this room's business: the program gives a `Dial`.
What fails is reported to the request that asked for the push. When the client leaves, what has not
been delivered is called off, so that nobody waits for it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from app.errors import LlamaServeError
from app.rpc_backend.errors import DeliveryError
from app.rpc_backend.wire.extensions import MAX_PUSH_BYTES
from app.rpc_backend.worker.budget import Budget, Held
from app.rpc_backend.worker.lanes import Report

log = logging.getLogger(__name__)

MAX_WAITING_BYTES: Final = 2 * MAX_PUSH_BYTES
"""Bytes that may wait for one target before the lane does."""

MAX_TARGETS: Final = 256

_SENDER_BYTES: Final = 1024 * 1024
"""What a connection and its thread count for."""

_LETTER_BYTES: Final = 4096
"""What a letter counts for beside its data, so that small ones are bounded too."""

_TICK_S: Final = 0.25
_FAREWELL_S: Final = 2.0
"""How long a client that has left may need for calling its deliveries off."""


class Courier(Protocol):
    """An open connection to another worker."""

    def deliver(self, key: bytes, sequence: int, data: bytes) -> None:
        """Leave bytes at a door, and wait until they are there.

        Raises: LlamaServeError.
        """

    def close(self) -> None:
        """End the connection."""


Dial = Callable[[str, int], Courier]
"""Connects to a worker by host and port. Raises: LlamaServeError."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where another worker listens."""

    host: str
    port: int


def letter_cost(size: int) -> int:
    """Return what a letter with so many bytes counts for."""
    return size + _LETTER_BYTES


def _nobody(error: Exception) -> None:
    """The one to tell of a failure when the client has left."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What to leave at which door, and whom to tell when that fails; without data it calls a
    delivery off.
    """

    key: bytes = field(repr=False)
    sequence: int
    data: bytes = field(default=b"", repr=False)
    report: Report = _nobody
    held: Held | None = None

    @property
    def cost(self) -> int:
        """What it counts for."""
        return letter_cost(len(self.data))

    @property
    def called_off(self) -> "Letter":
        """The one that takes its place when the client has left."""
        return Letter(self.key, self.sequence)


class Outgoing:
    """What one client of this worker has pushed. One thread at a time sends to a target."""

    def __init__(
        self,
        dial: Dial,
        budget: Budget | None = None,
        has_left: Callable[[], bool] = lambda: False,
    ) -> None:
        """`has_left` tells whether the client has gone, so that nobody waits for its sake."""
        self.budget = budget or Budget()
        self._dial = dial
        self._has_left = has_left
        self._lock = threading.Lock()
        self._senders: dict[Address, _Sender] = {}
        self._is_over = False

    def send(self, address: Address, letter: Letter) -> None:
        """Hand a letter over; waits while too much is on its way to the same target.

        Raises: DeliveryError, OutOfMemoryError.
        """
        with self._lock:
            sender = self._senders.get(address)
            if sender is None:
                if len(self._senders) >= MAX_TARGETS:
                    raise DeliveryError(f"more than {MAX_TARGETS} other workers")
                held = self.budget.hold(_SENDER_BYTES, "a connection to another worker")
                sender = _Sender(address, self._dial, held, self._has_left)
                self._senders[address] = sender
                if self._is_over:
                    sender.call_off()
        sender.add(letter)

    def call_off(self) -> None:
        """Deliver nothing any more, and say so to those who expect it."""
        with self._lock:
            self._is_over = True
            senders = list(self._senders.values())
        for sender in senders:
            sender.call_off()

    def close(self) -> None:
        """End the connections once everything is called off, or after a moment."""
        self.call_off()
        with self._lock:
            senders = list(self._senders.values())
        for sender in senders:
            sender.close()
        deadline = time.monotonic() + _FAREWELL_S
        for sender in senders:
            sender.join(max(deadline - time.monotonic(), 0))


class _Sender:
    """Delivers to one worker, in order."""

    def __init__(
        self, address: Address, dial: Dial, held: Held, has_left: Callable[[], bool]
    ) -> None:
        self._held = held
        self._address = address
        self._dial = dial
        self._has_left = has_left
        self._changed = threading.Condition()
        self._letters: deque[Letter] = deque()
        self._cost = 0
        self._is_over = False
        self._is_closed = False
        self._courier: Courier | None = None
        self._thread = threading.Thread(target=self._run, name=f"push-{address.host}", daemon=True)
        self._thread.start()

    def add(self, letter: Letter) -> None:
        with self._changed:
            while self._cost > MAX_WAITING_BYTES and not (self._is_over or self._has_left()):
                self._changed.wait(_TICK_S)
            if self._is_over or self._has_left():
                letter = letter.called_off
            self._letters.append(letter)
            self._cost += letter.cost
            self._changed.notify_all()

    def call_off(self) -> None:
        with self._changed:
            if self._is_over:
                return
            self._is_over = True
            self._letters = deque(letter.called_off for letter in self._letters)
            self._changed.notify_all()
        # The thread may be inside a delivery to a worker that takes nothing.
        self._hang_up()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the end, and make it come."""
        self._thread.join(timeout_s)
        with self._changed:
            self._letters.clear()
        self._hang_up()

    def _run(self) -> None:
        while (letter := self._next()) is not None:
            try:
                self._deliver(letter)
            except LlamaServeError as error:
                self._failed(letter, DeliveryError(f"delivery {letter.sequence}: {error}"))
            except Exception as error:
                log.exception("push to %s port %d failed", self._address.host, self._address.port)
                self._failed(letter, error)
            with self._changed:
                self._cost -= letter.cost
                self._changed.notify_all()
            # Waiting for the next one would keep it.
            del letter
        self._hang_up()

    def _next(self) -> Letter | None:
        with self._changed:
            while not (self._letters or self._is_closed):
                self._changed.wait()
            return self._letters.popleft() if self._letters else None

    def _deliver(self, letter: Letter) -> None:
        courier = self._courier or self._connect()
        with self._changed:
            self._courier = courier
            data = b"" if self._is_over else letter.data
        courier.deliver(letter.key, letter.sequence, data)

    def _connect(self) -> Courier:
        try:
            return self._dial(self._address.host, self._address.port)
        except LlamaServeError:
            with self._changed:
                if self._is_over:
                    # Who cannot be reached can neither be told.
                    self._letters.clear()
            raise

    def _failed(self, letter: Letter, error: Exception) -> None:
        self._hang_up()
        with self._changed:
            if self._is_over and letter.data:
                self._letters.appendleft(letter.called_off)
        if not self._is_over:
            letter.report(error)

    def _hang_up(self) -> None:
        with self._changed:
            courier, self._courier = self._courier, None
        if courier is not None:
            courier.close()
