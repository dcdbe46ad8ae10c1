"""What the clock says of a connection: whether its worker has fallen silent, and when to ask it for
a sign of life. Used by the transport, under its lock.
"""

import time
from dataclasses import dataclass
from typing import Final

from app.rpc_backend.client.outbox import Outbox
from app.rpc_backend.client.waiters import Waiters
from app.rpc_backend.wire.constants import Cmd

_SHORTEST_TICK_S: Final = 0.01
_LONGEST_TICK_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """How long a worker may show no sign of life while something is due, and how many bytes may
    wait to be sent before `submit()` blocks; after how long without traffic a worker of our own is
    asked for a sign of life, and how long it may take.
    """

    request_timeout_s: float = 600.0
    max_queued_bytes: int = 64 * 1024 * 1024
    ping_after_s: float = 15.0
    ping_timeout_s: float = 15.0

    @property
    def tick_s(self) -> float:
        """How often the clock is looked at."""
        shortest = min(self.request_timeout_s, self.ping_after_s, self.ping_timeout_s)
        return min(max(shortest / 4, _SHORTEST_TICK_S), _LONGEST_TICK_S)


class Pulse:
    """One connection's; `heard_at` is when bytes last came (monotonic)."""

    def __init__(self, limits: TransportLimits, outbox: Outbox, waiters: Waiters) -> None:
        self.heard_at = time.monotonic()
        self._limits = limits
        self._outbox = outbox
        self._waiters = waiters

    @property
    def silence_s(self) -> float | None:
        """The limit that the worker is past, None while it is not. An idle one that has read
        everything answers a ping at once; another may be waiting for a graph before it reads on.
        """
        since, limit_s = self._moved_at, self._limits.request_timeout_s
        if (head := self._waiters.head) is not None:
            since = max(since, head.since)
            if head.command is Cmd.PING and self._waiters.is_caught_up:
                limit_s = self._limits.ping_timeout_s
        return limit_s if time.monotonic() - since > limit_s else None

    @property
    def is_idle(self) -> bool:
        """Whether nothing has been under way for a while."""
        waiters = self._waiters
        is_busy = len(waiters) > 0 or self._outbox.n_bytes > 0 or waiters.failed is not None
        return not is_busy and time.monotonic() - self._moved_at > self._limits.ping_after_s

    @property
    def _moved_at(self) -> float:
        return max(self.heard_at, self._outbox.moved_at)
