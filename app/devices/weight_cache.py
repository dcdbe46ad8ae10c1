"""Float32 copies of quantised weights, kept while their bytes stay the same and memory allows.

Decoding a matrix costs more than multiplying with it, so the executor keeps the result per region
of a buffer. Whoever writes to a region says so (`invalidate`); whoever needs memory for something
that cannot do without takes it back (`shrink`): copies never stand in the way of a buffer.

A copy that was used within the last few runs is not given up for another one: a model larger than
the budget would otherwise lose each copy just before its next use and keep none.
Thread-safe: transfers of one client invalidate while another client computes.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import RLock

import torch

from app.devices.spans import Range, touches
from app.devices.torch_buffer import TorchBuffer

_IDLE_RUNS = 16
# A client's graphs may look at the same bytes in any number of ways.
MAX_ENTRIES = 1 << 16


@dataclass(slots=True, eq=False)
class CachedWeight:
    """One region [start, end) of a buffer and its decoded form (ne3, ne2, ne1, ne0)."""

    cache: "WeightCache"
    start: int
    end: int
    nbytes: int
    decode: Callable[[], torch.Tensor]
    held: torch.Tensor | None = None
    last_run: int = 0

    def value(self) -> torch.Tensor | None:
        """Return the F32 copy, made now when it is missing; None when there is no room."""
        self.last_run = self.cache.run
        held = self.held
        return held if held is not None else self.cache.fill(self)


@dataclass(slots=True)
class WeightCache:
    """`budget` is the most bytes to hold, None for what `room` allows; `room` says how many more
    bytes the device can spare.
    """

    room: Callable[[], int]
    budget: int | None = None
    nbytes: int = 0
    run: int = 0
    _entries: dict[TorchBuffer, dict[Hashable, CachedWeight]] = field(default_factory=dict)
    _n_entries: int = 0
    _refused_in: int = -1
    _asked_in: int = -1
    _room_left: int = 0
    _lock: RLock = field(default_factory=RLock)

    def entry(
        self,
        buffer: TorchBuffer,
        key: Hashable,
        span: tuple[int, int],
        nbytes: int,
        decode: Callable[[], torch.Tensor],
    ) -> CachedWeight | None:
        """Return the entry of one region; `key` tells apart different looks at the same bytes. None
        when there are more than any model has.
        """
        with self._lock:
            entries = self._entries.setdefault(buffer, {})
            found = entries.get(key)
            if found is None and self._n_entries < MAX_ENTRIES:
                self._n_entries += 1
                found = entries[key] = CachedWeight(self, *span, nbytes, decode)
            return found

    def fill(self, entry: CachedWeight) -> torch.Tensor | None:
        """Decode `entry` if there is room."""
        with self._lock:
            if self._refused_in == self.run or not self._make_room(entry.nbytes):
                self._refused_in = self.run
                return None
            entry.held = entry.decode()
            self.nbytes += entry.nbytes
            self._room_left -= entry.nbytes
            return entry.held

    def invalidate(self, buffer: TorchBuffer, start: int, end: int) -> None:
        """Forget what was decoded from bytes [start, end)."""
        self.invalidate_all(buffer, [(start, end)])

    def invalidate_all(self, buffer: TorchBuffer, ranges: Sequence[Range]) -> None:
        """Forget what was decoded from these bytes, which `app.devices.spans.merged` has joined."""
        if buffer not in self._entries:
            return
        with self._lock:
            for entry in self._entries.get(buffer, {}).values():
                if entry.held is not None and touches(ranges, entry.start, entry.end):
                    self._release(entry)

    def drop(self, buffer: TorchBuffer) -> None:
        """Forget a whole buffer."""
        with self._lock:
            entries = self._entries.pop(buffer, {})
            self._n_entries -= len(entries)
            for entry in entries.values():
                self._release(entry)

    def shrink(self, wanted: int) -> None:
        """Give up at least `wanted` bytes, or everything; the longest unused first."""
        with self._lock:
            for entry in self._held():
                if wanted <= 0:
                    return
                wanted -= entry.nbytes
                self._release(entry)

    def _held(self) -> list[CachedWeight]:
        entries = [e for group in self._entries.values() for e in group.values()]
        return sorted((e for e in entries if e.held is not None), key=lambda e: e.last_run)

    def _make_room(self, wanted: int) -> bool:
        free = self._free()
        if free >= wanted:
            return True
        idle = [e for e in self._held() if e.last_run < self.run - _IDLE_RUNS]
        if free + sum(e.nbytes for e in idle) < wanted:
            return False
        for entry in idle:
            if free >= wanted:
                break
            free += entry.nbytes
            self._release(entry)
        return True

    def _free(self) -> int:
        """Return the bytes that may still be held; the device is asked once per run."""
        if self._asked_in != self.run:
            self._asked_in = self.run
            self._room_left = self.room()
        if self.budget is None:
            return self._room_left
        return min(self._room_left, self.budget - self.nbytes)

    def _release(self, entry: CachedWeight) -> None:
        if entry.held is not None:
            entry.held = None
            self.nbytes -= entry.nbytes
            self._room_left += entry.nbytes
