"""Tensors on their way from this worker straight to others.

A lane reads the bytes and goes on; a thread per target connects, keeps the connection and delivers
in order. How another worker is reached is not this room's business: the program gives a `Dial`.
What fails is reported to the request that asked for the push.
"""

import logging
import threading
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


@dataclass(frozen=True, slots=True)
class Letter:
    """What to leave at which door, and whom to tell when that fails."""

    key: bytes = field(repr=False)
    sequence: int
    data: bytes = field(repr=False)
    report: Report
    held: Held | None = None


class Outgoing:
    """What one client of this worker has pushed. One thread at a time sends to a target."""

    def __init__(self, dial: Dial, budget: Budget | None = None) -> None:
        self.budget = budget or Budget()
        self._dial = dial
        self._lock = threading.Lock()
        self._senders: dict[Address, _Sender] = {}
        self._is_closed = False

    def send(self, address: Address, letter: Letter) -> None:
        """Hand a letter over; waits while too much is on its way to the same target.

        Raises: DeliveryError, OutOfMemoryError.
        """
        with self._lock:
            sender = self._senders.get(address)
            if sender is None:
                if self._is_closed or len(self._senders) >= MAX_TARGETS:
                    raise DeliveryError(f"more than {MAX_TARGETS} other workers, or none any more")
                held = self.budget.hold(_SENDER_BYTES, "a connection to another worker")
                sender = _Sender(address, self._dial, held)
                self._senders[address] = sender
        sender.add(letter)

    def close(self) -> None:
        """Drop what has not left and end the connections."""
        with self._lock:
            self._is_closed = True
            senders = list(self._senders.values())
        for sender in senders:
            sender.close()


class _Sender:
    """Delivers to one worker, in order."""

    def __init__(self, address: Address, dial: Dial, held: Held) -> None:
        self._held = held
        self._address = address
        self._dial = dial
        self._changed = threading.Condition()
        self._letters: deque[Letter] = deque()
        self._n_bytes = 0
        self._is_closed = False
        self._courier: Courier | None = None
        threading.Thread(target=self._run, name=f"push-{address.host}", daemon=True).start()

    def add(self, letter: Letter) -> None:
        with self._changed:
            while self._n_bytes > MAX_WAITING_BYTES and not self._is_closed:
                self._changed.wait()
            self._letters.append(letter)
            self._n_bytes += len(letter.data)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        # The thread may be inside a delivery to a worker that takes nothing.
        self._hang_up()

    def _run(self) -> None:
        while (letter := self._next()) is not None:
            try:
                self._deliver(letter)
            except LlamaServeError as error:
                self._hang_up()
                letter.report(DeliveryError(f"delivery {letter.sequence}: {error}"))
            except Exception as error:
                log.exception("push to %s port %d failed", self._address.host, self._address.port)
                self._hang_up()
                letter.report(error)
            with self._changed:
                self._n_bytes -= len(letter.data)
                self._changed.notify_all()
        self._hang_up()

    def _next(self) -> Letter | None:
        with self._changed:
            while not (self._letters or self._is_closed):
                self._changed.wait()
            return None if self._is_closed else self._letters.popleft()

    def _deliver(self, letter: Letter) -> None:
        courier = self._courier
        if courier is None:
            courier = self._dial(self._address.host, self._address.port)
            with self._changed:
                self._courier = courier
                if self._is_closed:
                    raise DeliveryError("the client has left")
        courier.deliver(letter.key, letter.sequence, letter.data)

    def _hang_up(self) -> None:
        with self._changed:
            courier, self._courier = self._courier, None
        if courier is not None:
            courier.close()
