"""Weights as a loader hands them to a device, and a record of how they arrive."""

from collections.abc import Callable
from dataclasses import dataclass, field

from app.devices.base import Weight
from app.ggml.tensor import Tensor
from app.rpc_backend.wire.fnv import fnv1a_64


@dataclass
class Arrivals:
    """What was told of a weight: (start, end, had)."""

    told: list[tuple[int, int, bool]] = field(default_factory=list)

    @property
    def n_had(self) -> int:
        """Bytes that the device had."""
        return sum(end - start for start, end, had in self.told if had)

    @property
    def n_sent(self) -> int:
        """Bytes that were sent."""
        return sum(end - start for start, end, had in self.told if not had)

    def __call__(self, start: int, end: int, had: bool) -> None:
        """Note it."""
        self.told.append((start, end, had))


def weight_of(
    tensor: Tensor,
    data: bytes,
    arrived: Callable[[int, int, bool], None] = lambda start, end, had: None,
) -> Weight:
    """A weight with these bytes, hashed by numpy."""
    return Weight(tensor, memoryview(data), lambda: fnv1a_64(data), arrived)
