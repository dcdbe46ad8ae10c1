"""How weights get to a device of this machine: copied from where they are mapped, part by part."""

from collections.abc import Iterable
from typing import Final

from app.devices.base import Device, Weight

PART_BYTES: Final = 16 << 20
"""So much of the file is resident at a time, beside the copy on the device."""


def copy_weights(device: Device, weights: Iterable[Weight]) -> None:
    """Write whole tensors.

    Raises: GraphError, DeviceLostError.
    """
    for weight in weights:
        size = weight.data.nbytes
        for start in range(0, size, PART_BYTES):
            end = min(start + PART_BYTES, size)
            device.set_tensor(weight.tensor, weight.data[start:end], start)
            weight.arrived(start, end, False)
    device.synchronize()
