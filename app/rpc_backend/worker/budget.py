"""What all clients of a worker together may make it hold beside their buffers.

Kept and queued graphs, requests that are half read, deliveries and pushes on their way: whoever
stores such a thing holds its bytes here first, and is refused when all of them would take too much
of the machine. A part is granted always; above it, only what the devices that compute in this
machine's memory still have free. Any thread may ask. What is dropped without `release` is given
back by itself.
"""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from app.devices.base import Device, DeviceKind, DeviceMemory
from app.devices.host_memory import host_memory
from app.errors import OutOfMemoryError

_SHARE: Final = 4
_GRANTED_SHARE: Final = 64


class Budget:
    """One for all clients; buffers are not counted, their devices do that."""

    def __init__(self, devices: Sequence[Device] = (), limit: int | None = None) -> None:
        """`limit` None is a quarter of this machine's memory."""
        total = host_memory().total
        self.limit = total // _SHARE if limit is None else limit
        self._granted = min(self.limit, total // _GRANTED_SHARE)
        self._devices = [device for device in devices if device.info.kind is DeviceKind.CPU]
        self._lock = threading.Lock()
        self._used = 0
        # Garbage may be collected while the lock is held, so what it gives back waits here.
        self._returned: deque[int] = deque()

    @property
    def used(self) -> int:
        """Bytes held now."""
        with self._lock:
            return self._settle()

    def memory(self, device: Device) -> DeviceMemory:
        """Free and total bytes of a device; what is held here is not free for buffers."""
        memory = device.memory()
        if device.info.kind is not DeviceKind.CPU:
            return memory
        return DeviceMemory(max(0, memory.free - self.used), memory.total)

    def hold(self, n_bytes: int, what: str) -> "Held":
        """Hold bytes until they are released.

        Raises: OutOfMemoryError naming what they are for.
        """
        held = Held(self, what)
        held.resize(n_bytes)
        return held

    def take(self, n_bytes: int, what: str) -> None:
        """Count `n_bytes` more.

        Raises: OutOfMemoryError.
        """
        with self._lock:
            after = self._settle() + n_bytes
            most = self.limit if after <= self._granted else self._most()
            if after > most:
                raise OutOfMemoryError(
                    f"{what}: {n_bytes} bytes beside {self._used} of all clients: "
                    f"expected up to {most}"
                )
            self._used = after

    def _most(self) -> int:
        # What is held here has been touched, for which a device may take its own promises to have
        # been: so all of it has to fit into what is free, not only what is new.
        free = [device.memory().free for device in self._devices] or [host_memory().free]
        return max(self._granted, min(self.limit, *free))

    def give(self, n_bytes: int) -> None:
        """Count `n_bytes` less; never waits."""
        self._returned.append(n_bytes)

    def _settle(self) -> int:
        while self._returned:
            self._used -= self._returned.popleft()
        return self._used


class Held:
    """Bytes of a budget that one thing takes; used by one thread at a time."""

    def __init__(self, budget: Budget, what: str) -> None:
        self._budget = budget
        self._what = what
        self._n_bytes = 0

    def resize(self, n_bytes: int) -> None:
        """Hold `n_bytes` instead.

        Raises: OutOfMemoryError; what was held before is still.
        """
        if n_bytes > self._n_bytes:
            self._budget.take(n_bytes - self._n_bytes, self._what)
        elif n_bytes < self._n_bytes:
            self._budget.give(self._n_bytes - n_bytes)
        self._n_bytes = n_bytes

    def release(self) -> None:
        """Hold nothing."""
        self.resize(0)

    def __del__(self) -> None:
        self.release()
