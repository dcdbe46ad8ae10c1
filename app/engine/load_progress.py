"""How far the weights have come on their way to the devices.

The loader's threads count, the command line shows.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """Bytes of weights for one device: in all, sent, and not sent since it had them."""

    name: str
    total: int
    sent: int = 0
    had: int = 0


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """All devices."""

    devices: tuple[DeviceLoad, ...]

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(device.total for device in self.devices)

    @property
    def had(self) -> int:
        """Bytes that devices had already."""
        return sum(device.had for device in self.devices)

    @property
    def done(self) -> int:
        """Bytes that are there or have left."""
        return sum(device.sent + device.had for device in self.devices)


Progress = Callable[[LoadProgress], None]
"""Called as bytes arrive, by one thread at a time."""


class Tally:
    """Adds up what arrives and tells of it, also that it begins; any thread may count."""

    def __init__(self, devices: Sequence[DeviceLoad], progress: Progress) -> None:
        self._devices = list(devices)
        self._progress = progress
        self._lock = threading.Lock()
        progress(LoadProgress(tuple(devices)))

    def count(self, device: int, n_bytes: int, had: bool) -> None:
        """Count bytes that came to the device of this number, or that it had."""
        with self._lock:
            before = self._devices[device]
            sent, known = (0, n_bytes) if had else (n_bytes, 0)
            self._devices[device] = replace(before, sent=before.sent + sent, had=before.had + known)
            self._progress(LoadProgress(tuple(self._devices)))
