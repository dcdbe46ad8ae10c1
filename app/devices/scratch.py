"""Scratch memory of an executor: handed out from the front, taken back all at once.

One run at a time uses it, so all compiled graphs share it. When a request does not fit, a larger
piece replaces the old one. Graphs that were compiled before go on using theirs; each piece is at
least twice as large as the last, so all together are at most twice what the largest graph needs.
"""

from collections.abc import Callable, Sequence
from math import prod

import torch

_GRAIN = 64
_SMALLEST = 1 << 16


class Scratch:
    """`admit` is asked before memory is taken and raises when the device has not got it."""

    def __init__(self, device: torch.device, admit: Callable[[int], None]) -> None:
        self._device = device
        self._admit = admit
        self._storage = torch.empty(0, dtype=torch.uint8, device=device)
        self._used = 0

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return memory of its own until `reset`.

        Raises: OutOfMemoryError.
        """
        nbytes = prod(shape) * dtype.itemsize
        padded = -(-nbytes // _GRAIN) * _GRAIN
        if self._used + padded > self._storage.numel():
            size = max(_SMALLEST, padded, 2 * self._storage.numel())
            self._admit(size)
            self._storage = torch.empty(size, dtype=torch.uint8, device=self._device)
            self._used = 0
        part = self._storage[self._used : self._used + nbytes]
        self._used += padded
        return part.view(dtype).view(*shape)

    def reset(self) -> None:
        """Take everything back."""
        self._used = 0
