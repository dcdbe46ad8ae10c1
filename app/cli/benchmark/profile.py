"""What each kind of operation took in the timed runs of a test, without warm-up and depth runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from app.devices.base import Device
from app.devices.profile import Profile, Profiled, profile_table, profile_text, start_profiles


class RunProfile:
    """Adds up the profiles of all devices over the runs of one test after the other."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = devices
        self._sums = [Profile() for _ in devices]

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count what the devices do inside the block."""
        start_profiles(self._devices)
        yield
        for device, total in zip(self._devices, self._sums, strict=True):
            if isinstance(device, Profiled):
                for row in device.profile():
                    total.add(row.kind, row.seconds, row.count)

    def take(self, test_name: str, samples_ns: Sequence[int]) -> str:
        """Return the tables of the test that has just been measured, and begin anew."""
        took_ms = sum(samples_ns) / 1e6
        plural = "s" if len(samples_ns) > 1 else ""
        parts = [f"{test_name}: {took_ms:.1f} ms in {len(samples_ns)} run{plural}"]
        for device, total in zip(self._devices, self._sums, strict=True):
            is_known = isinstance(device, Profiled)
            name, rows = device.info.name, total.rows()
            parts.append(profile_table(name, rows) if is_known else profile_text(device))
        self._sums = [Profile() for _ in self._devices]
        return "\n".join(parts)
