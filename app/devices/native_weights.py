"""Which weights stand in groups of rows at the moment, and the turning back and forth in place.

A plan says which regions it needs grouped and which bytes it touches in plain form; `settle` makes
it so before the plan runs. Transfers call `make_plain` first, so that a client never sees the
grouped form. The size stays the same.

`epoch` changes with every change, so that a plan that was settled in the same epoch need not be
looked at again. Owned by the executor, whose lock is held for every call; a buffer's own lock is
taken where its bytes move.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.devices.native_buffer import GroupedRegion, NativeBuffer
from app.kernels.cpu.library import ThreadPool

Span = tuple[NativeBuffer, int, int]


@dataclass(slots=True)
class GroupedWeights:
    """The grouped regions of all buffers of one device."""

    pool: ThreadPool
    epoch: int = 1

    def settle(
        self, grouped: Sequence[tuple[NativeBuffer, GroupedRegion]], plain: Iterable[Span]
    ) -> None:
        """Bring weights into the form that a plan wants."""
        for buffer, start, end in plain:
            self.make_plain(buffer, start, end)
        for buffer, wanted in grouped:
            if buffer.regions.get(wanted.start) != wanted:
                self.make_plain(buffer, wanted.start, wanted.end)
                self._turn(buffer, wanted, forward=True)
                buffer.regions[wanted.start] = wanted
                self.epoch += 1

    def make_plain(self, buffer: NativeBuffer, start: int, end: int) -> None:
        """Turn back every region that has bytes in [start, end)."""
        for found in overlapping(buffer, start, end):
            self._turn(buffer, found, forward=False)
            del buffer.regions[found.start]
            self.epoch += 1

    def _turn(self, buffer: NativeBuffer, which: GroupedRegion, *, forward: bool) -> None:
        address = buffer.address + which.start
        with buffer.lock:
            done = self.pool.repack(which.type, address, which.ne0, which.n_rows, forward=forward)
        assert done, f"type {which.type} was said to have a grouped layout"


def overlapping(buffer: NativeBuffer, start: int, end: int) -> list[GroupedRegion]:
    """Return the grouped regions that have bytes in [start, end)."""
    return [r for r in buffer.regions.values() if r.start < end and start < r.end]
