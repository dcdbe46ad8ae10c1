"""Time per kind of operation: what a device measures, how times are added up, and how they are
shown.

Local devices that can time their steps implement `Profiled`; the engine and the command lines ask
for it by `isinstance`, since a device without it is a device all the same. Times are of the wall
clock; what passes between two graphs is nobody's.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from app.devices.base import Device, DeviceKind


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """Time that all steps of one kind have taken since profiling was switched on."""

    kind: str
    count: int
    seconds: float


@runtime_checkable
class Profiled(Protocol):
    """A device that can tell where its time goes."""

    def start_profile(self) -> None:
        """Time every step from now on, beginning with nothing."""

    def profile(self) -> list[ProfileRow]:
        """Return the time of each kind of step since `start_profile`, slowest first."""


@dataclass(slots=True)
class Profile:
    """Adds up times per kind of step; may be read while another thread adds."""

    seconds: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, seconds: float, count: int = 1) -> None:
        """Count steps that took so long together."""
        self.counts[kind] += count
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds

    def rows(self) -> list[ProfileRow]:
        """Return the kinds, slowest first."""
        slowest = sorted(self.seconds.copy().items(), key=lambda item: -item[1])
        return [ProfileRow(kind, self.counts[kind], seconds) for kind, seconds in slowest]


def start_profiles(devices: Iterable[Device]) -> None:
    """Switch profiling on where there is such a thing."""
    for device in devices:
        if isinstance(device, Profiled):
            device.start_profile()


def profile_text(device: Device) -> str:
    """Return the profile of a device for people, or one line that says why there is none."""
    if isinstance(device, Profiled):
        return profile_table(device.info.name, device.profile())
    info = device.info
    if info.kind is DeviceKind.REMOTE:
        return (
            f"profile of {info.name}: its worker has it ({info.description}; "
            "llama-rpc-server --profile)"
        )
    return f"profile of {info.name}: this kind of device has none"


def profile_table(title: str, rows: Sequence[ProfileRow]) -> str:
    """Return one line of totals and one per kind: milliseconds, percent of the total, steps and
    microseconds per step.
    """
    total, steps = sum(row.seconds for row in rows), sum(row.count for row in rows)
    head = f"profile of {title}: {total * 1e3:.1f} ms in {steps} steps"
    if not rows:
        return f"profile of {title}: nothing ran"
    width = max(len("kind"), *(len(row.kind) for row in rows))
    lines = [head, f"  {'kind':<{width}}  {'ms':>10}  {'%':>5}  {'steps':>9}  {'µs/step':>9}"]
    for row in rows:
        share = 100 * row.seconds / total if total else 0.0
        each = row.seconds * 1e6 / row.count
        lines.append(
            f"  {row.kind:<{width}}  {row.seconds * 1e3:>10.1f}  {share:>5.1f}"
            f"  {row.count:>9}  {each:>9.1f}"
        )
    return "\n".join(lines)
