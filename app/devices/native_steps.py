"""Orders native steps: which threads share a step, where they must wait for one another, and the
scratch memory.

Pure bookkeeping over `StepSpec`s, called by the native compiler. Two steps may overlap when neither
writes what the other reads or writes; steps that one thread runs alone follow one another anyway.
The memory planner gives bytes away again, so byte ranges are what counts, not tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.kernels.cpu.layout import StepFlag
from app.kernels.cpu.step import Scratch, StepSpec

Range = tuple[int, int]

# Elements below which sharing a step costs more than it saves: a barrier takes about a microsecond.
SOLO_WORK: Final = 8192
NODE_AREA: Final = 0
N_SLOTS: Final = 4
_GRAIN: Final = 64
# Steps that may be open beside one another: each new one is held against all of them.
_MOST_OPEN: Final = 64


@dataclass(slots=True)
class ScratchAreas:
    """Sizes of the scratch areas: one that every step may use while it runs, a few for values that
    several steps share, taken in turn, and those that last for the whole run.
    """

    sizes: list[int] = field(default_factory=lambda: [0] * (1 + N_SLOTS))
    _next: int = 0

    def own(self, size: int) -> Scratch:
        """Return memory for one step."""
        return self._grown(NODE_AREA, size)

    def slot(self, size: int) -> Scratch:
        """Return the slot that was taken the longest time ago."""
        area = 1 + self._next
        self._next = (self._next + 1) % N_SLOTS
        return self._grown(area, size)

    def lasting(self, size: int) -> Scratch:
        """Return memory that no other value takes."""
        self.sizes.append(0)
        return self._grown(len(self.sizes) - 1, size)

    def offsets(self) -> tuple[list[int], int]:
        """Return where each area starts, and the bytes of all."""
        offsets, total = [], 0
        for size in self.sizes:
            offsets.append(total)
            total += -(-size // _GRAIN) * _GRAIN
        return offsets, total

    def _grown(self, area: int, size: int) -> Scratch:
        self.sizes[area] = max(self.sizes[area], size)
        return Scratch(area, size)


@dataclass(frozen=True, slots=True)
class _Open:
    """A step that others may still overlap."""

    solo: bool
    reads: list[Range]
    writes: list[Range]


def set_flags(steps: Sequence[StepSpec]) -> None:
    """Mark small steps SOLO, and FREE_END where the next step need not wait."""
    since_barrier: list[_Open] = []
    before: StepSpec | None = None
    for step in steps:
        solo = step.work <= SOLO_WORK
        now = _Open(solo, step.reads(), step.writes())
        step.flags = StepFlag.SOLO if solo else StepFlag.NONE
        if before is not None:
            is_full = len(since_barrier) >= _MOST_OPEN
            if is_full or any(_conflict(earlier, now) for earlier in since_barrier):
                since_barrier.clear()
            else:
                before.flags |= StepFlag.FREE_END
        since_barrier.append(now)
        before = step


def _conflict(a: _Open, b: _Open) -> bool:
    if a.solo and b.solo:
        return False
    return (
        _overlap(a.writes, b.reads) or _overlap(a.writes, b.writes) or _overlap(a.reads, b.writes)
    )


def _overlap(a: list[Range], b: list[Range]) -> bool:
    return any(x[0] < y[1] and y[0] < x[1] for x in a for y in b)
