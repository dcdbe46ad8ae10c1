"""Where one worker leaves bytes for a client of another: a mailbox per session, found by its key.

A main host asks this worker for a door and tells the key to the worker that is to push
(`wire/extensions.py`). What comes in under the key waits here, by sequence number, until the
session takes it. A mailbox is bounded: who delivers waits for room, but what the session waits for
is always let in, so that two senders cannot block one another. Used by the threads that serve the
delivering workers and by the lanes of the session.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from app.rpc_backend.errors import DeliveryError
from app.rpc_backend.wire.extensions import KEY_BYTES, MAX_PUSH_BYTES
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.worker.budget import Budget, Held

MAX_MAIL_BYTES: Final = 4 * MAX_PUSH_BYTES

_BYTES_EACH: Final = 4096
"""What a parcel counts for beside its data, so that empty ones are bounded too."""

_TICK_S: Final = 0.25

HasLeft = Callable[[], bool]


@dataclass(slots=True, eq=False)
class _Parcel:
    size: int
    held: Held
    pieces: list[Body] = field(default_factory=list)
    is_whole: bool = False
    failure: str | None = None

    @property
    def cost(self) -> int:
        return _cost(self.size)

    @property
    def is_settled(self) -> bool:
        return self.is_whole or self.failure is not None


def _cost(size: int) -> int:
    return size + _BYTES_EACH


class Mailbox:
    """Deliveries for one session."""

    def __init__(
        self, timeout_s: float, max_bytes: int = MAX_MAIL_BYTES, budget: Budget | None = None
    ) -> None:
        """`timeout_s` is how long to wait for a delivery, or for room for one; `budget` is what all
        clients share.
        """
        self._budget = budget or Budget()
        self.key = secrets.token_bytes(KEY_BYTES)
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._parcels: dict[int, _Parcel] = {}
        self._n_bytes = 0
        self._wanted: set[int] = set()
        self._given_up: set[int] = set()
        self._is_closed = False

    def begin(self, sequence: int, size: int, has_left: HasLeft) -> "Incoming":
        """Make room for a delivery; `has_left` tells whether its sender has.

        Raises: DeliveryError, OutOfMemoryError.
        """
        what = f"delivery {sequence} of {size} bytes"
        if size > MAX_PUSH_BYTES:
            raise DeliveryError(f"{what}: expected up to {MAX_PUSH_BYTES}")
        parcel = _Parcel(size, self._budget.hold(_cost(size), what))
        with self._changed:
            self._wait(lambda: self._admits(sequence, parcel), f"{what}: no room", has_left)
            if sequence in self._given_up:
                raise DeliveryError(f"{what}: it is too late")
            if sequence in self._parcels:
                raise DeliveryError(f"{what}: this number has come already")
            self._parcels[sequence] = parcel
            self._n_bytes += parcel.cost
        return Incoming(self, parcel)

    def _admits(self, sequence: int, parcel: _Parcel) -> bool:
        is_refused = sequence in self._given_up or sequence in self._parcels
        has_room = self._n_bytes + parcel.cost <= self._max_bytes
        return is_refused or has_room or sequence in self._wanted

    def take(self, sequence: int, size: int, has_left: HasLeft) -> list[Body]:
        """Wait for a delivery of `size` bytes and return it in pieces; `has_left` tells whether the
        session's client has.

        Raises: DeliveryError.
        """
        what = f"delivery {sequence}"
        with self._changed:
            self._wanted.add(sequence)
            self._changed.notify_all()
            try:
                self._wait(lambda: self._is_settled(sequence), f"{what} did not come", has_left)
            except DeliveryError:
                self._given_up.add(sequence)
                raise
            finally:
                self._wanted.discard(sequence)
            parcel = self._parcels.pop(sequence)
            self._n_bytes -= parcel.cost
            self._changed.notify_all()
        if parcel.failure is not None:
            raise DeliveryError(f"{what}: {parcel.failure}")
        if not parcel.size:
            raise DeliveryError(f"{what}: it was called off, its sender could not bring it")
        if parcel.size != size:
            raise DeliveryError(f"{what}: {parcel.size} bytes came: expected {size}")
        return parcel.pieces

    def _is_settled(self, sequence: int) -> bool:
        parcel = self._parcels.get(sequence)
        return parcel is not None and parcel.is_settled

    def _wait(self, is_ready: Callable[[], bool], what: str, has_left: HasLeft) -> None:
        """Wait for a condition; the lock is held."""
        deadline = time.monotonic() + self._timeout_s
        while not is_ready():
            if self._is_closed or has_left():
                raise DeliveryError(f"{what} before the client left")
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise DeliveryError(f"{what} within {self._timeout_s:g} s")
            self._changed.wait(min(left_s, _TICK_S))

    def add(self, parcel: _Parcel, piece: Body) -> None:
        """Add the next bytes of a delivery; they are dropped when the session has ended."""
        with self._changed:
            if not self._is_closed:
                parcel.pieces.append(piece)

    def settle(self, parcel: _Parcel, failure: str | None = None) -> None:
        """Note that a delivery is whole, or why it never will be."""
        with self._changed:
            parcel.is_whole, parcel.failure = failure is None, failure
            if failure is not None:
                parcel.pieces.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """End everybody's waiting and drop what is there."""
        with self._changed:
            self._is_closed = True
            self._parcels.clear()
            self._changed.notify_all()


class Incoming:
    """A delivery on its way; `finish` or `abandon` ends it."""

    def __init__(self, mailbox: Mailbox, parcel: _Parcel) -> None:
        self._mailbox = mailbox
        self._parcel = parcel

    def write(self, piece: Body) -> None:
        """Add the next bytes."""
        self._mailbox.add(self._parcel, piece)

    def finish(self) -> None:
        """Everything has come."""
        self._mailbox.settle(self._parcel)

    def abandon(self) -> None:
        """The rest will not come."""
        self._mailbox.settle(self._parcel, "the worker that sent it left in the middle")


class Mailboxes:
    """The mailboxes of all sessions of a worker."""

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget or Budget()
        self._lock = threading.Lock()
        self._by_key: dict[bytes, Mailbox] = {}

    def open(self, timeout_s: float) -> Mailbox:
        """Make one."""
        mailbox = Mailbox(timeout_s, budget=self._budget)
        with self._lock:
            self._by_key[mailbox.key] = mailbox
        return mailbox

    def find(self, key: bytes) -> Mailbox:
        """Return the one with this key.

        Raises: DeliveryError.
        """
        with self._lock:
            mailbox = self._by_key.get(key)
        if mailbox is None:
            raise DeliveryError("no door of this worker has this key, or its client has left")
        return mailbox

    def close(self, mailbox: Mailbox) -> None:
        """Forget one and drop what is in it."""
        with self._lock:
            self._by_key.pop(mailbox.key, None)
        mailbox.close()
