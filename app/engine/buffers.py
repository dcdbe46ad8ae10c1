"""Lays tensors out in device buffers: sizes as the device asks for them, aligned, cut at its
largest buffer.
"""

from collections.abc import Sequence

from app.devices.base import BufferUsage, Device
from app.ggml.tensor import Buffer, Tensor


def align_up(size: int, alignment: int) -> int:
    """Round `size` up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


def alloc_tensors(device: Device, tensors: Sequence[Tensor], usage: BufferUsage) -> list[Buffer]:
    """Give every tensor its place on `device`, in as few buffers as the device allows.

    Raises: OutOfMemoryError, DeviceLostError.
    """
    alignment, limit = device.alignment(), device.max_size()
    groups: list[tuple[list[tuple[Tensor, int]], int]] = []
    at = 0
    for tensor in tensors:
        size = align_up(device.alloc_size(tensor), alignment)
        if not groups or at + size > limit:
            groups.append(([], 0))
            at = 0
        members, _ = groups[-1]
        members.append((tensor, at))
        at += size
        groups[-1] = (members, at)
    buffers = []
    for members, size in groups:
        buffer = device.alloc(size, usage)
        for tensor, offset in members:
            tensor.buffer, tensor.offset = buffer, offset
        buffers.append(buffer)
    return buffers
