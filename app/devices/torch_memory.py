"""Free and total memory of a torch device, as honestly as its driver or the kernel tells.

Used by `TorchDevice` before it hands out memory and when it is asked.
"""

import torch

from app.devices.host_memory import host_memory, touched_bytes

_SMALLEST_MARGIN = 512 << 20


class MemoryProbe:
    """Asks for one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._touched_before = touched_bytes()

    def total(self) -> int:
        """Return all memory of the device."""
        if self._device.type == "cpu":
            return host_memory().total
        if self._device.type == "mps":
            return int(torch.mps.recommended_max_memory())
        return int(torch.get_device_module(self._device).mem_get_info(self._device)[1])

    def free(self, promised: int, cached: int) -> int:
        """Return the bytes that may still be taken.

        On the host, pages of buffers that nobody has touched yet look available to the kernel:
        `promised` bytes of buffers, less what this process has touched beyond `cached` bytes of
        decoded weights, are taken off.
        """
        if self._device.type == "cpu":
            touched = touched_bytes() - self._touched_before - cached
            untouched = promised - max(0, min(promised, touched))
            return host_memory().free - untouched
        if self._device.type == "mps":
            return self.total() - int(torch.mps.driver_allocated_memory())
        driver = torch.get_device_module(self._device)
        unused = driver.memory_reserved(self._device) - driver.memory_allocated(self._device)
        return int(driver.mem_get_info(self._device)[0] + unused)

    def margin(self) -> int:
        """Return the bytes that decoded weights must leave free."""
        return max(_SMALLEST_MARGIN, self.total() // 20)
