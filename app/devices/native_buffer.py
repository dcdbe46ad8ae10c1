"""A buffer of the native CPU device: a private anonymous mapping, and where a tensor's bytes are in
it.

The mapping is zeroed, page-aligned, and free of cost until it is touched, so that nobody reads what
another client left behind. `region` does all bounds checks for transfers and for kernels. Grouped
weights (`native_weights`) are recorded here, under the buffer's lock: their bytes are not what a
client wrote.
"""

import ctypes
import mmap
from dataclasses import dataclass
from threading import RLock

import numpy as np

from app.devices.region import place_in, region_in
from app.errors import GraphError
from app.ggml.tensor import Tensor

_GRAIN = 64
_HUGE_PAGE = 2 << 20
_MANY_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class GroupedRegion:
    """Rows of one weight that are stored in groups: bytes [start, end), and what to turn back."""

    start: int
    end: int
    type: int
    ne0: int
    n_rows: int


class NativeBuffer:
    """Bytes of the host; `size` is what was asked, the mapping a whole number of 64-byte units."""

    def __init__(self, size: int) -> None:
        """Raises: OSError when the system has not got the memory."""
        self._size = size
        self.lock = RLock()
        self.regions: dict[int, GroupedRegion] = {}
        # What the reference kernels see of the same memory, made when one is needed.
        self.twin: object | None = None
        padded = max(_GRAIN, -(-size // _GRAIN) * _GRAIN)
        self._map: mmap.mmap | None = mmap.mmap(
            -1, padded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        if padded >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return self._size

    @property
    def address(self) -> int:
        """Address of the first byte.

        Raises: GraphError when the buffer was freed.
        """
        self.mapping()
        return self._address

    def mapping(self) -> mmap.mmap:
        """Return the bytes.

        Raises: GraphError when the buffer was freed.
        """
        if self._map is None:
            raise GraphError(f"buffer of {self._size} bytes: used after it was freed")
        return self._map

    def write(self, start: int, data: memoryview) -> None:
        """Copy bytes in. Many of them take time, above all the first ones on fresh pages, and other
        threads run meanwhile.

        Raises: GraphError when the buffer was freed.
        """
        held = self.mapping()
        if data.nbytes < _MANY_BYTES:
            held[start : start + data.nbytes] = data
        else:
            source = np.frombuffer(data, np.uint8)
            ctypes.memmove(self._address + start, source.ctypes.data, source.size)

    def release(self) -> None:
        """Let the memory go."""
        self._map = None
        self.twin = None
        self.regions.clear()


def place(tensor: Tensor) -> tuple[NativeBuffer, int]:
    """Return a tensor's buffer and its first byte there. Raises: GraphError as `place_in` does."""
    return place_in(tensor, NativeBuffer)


def region(tensor: Tensor, offset: int, size: int) -> tuple[NativeBuffer, int]:
    """Return the buffer and the first of these bytes. Raises: GraphError as `region_in` does."""
    return region_in(tensor, NativeBuffer, offset, size)
