"""A buffer as one torch byte tensor, and the one place where a tensor's bytes are located in it.

`region` does all bounds checks for transfers and for kernels; `element_view` and `block_view` are
the only functions where ggml order [ne0, ne1, ne2, ne3] meets torch order (ne3, ne2, ne1, ne0).
On the CPU a buffer is a private anonymous mapping: zeroed, page-aligned, and free of cost until it
is touched, so that nobody reads what another client left behind.
"""

import mmap

import torch

from app.devices.region import place_in, region_in
from app.errors import GraphError
from app.ggml.tensor import Tensor
from app.ggml.types import TRAITS
from app.kernels.torch_ref.context import DTYPES

_GRAIN = 64


class TorchBuffer:
    """Bytes of one device; `storage` is a whole number of 64-byte units, `size` what was asked."""

    def __init__(self, size: int, storage: torch.Tensor) -> None:
        self._size = size
        self._storage: torch.Tensor | None = storage
        self._typed: dict[torch.dtype, torch.Tensor] = {}

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return self._size

    @property
    def storage(self) -> torch.Tensor:
        """The bytes.

        Raises: GraphError when the buffer was freed.
        """
        if self._storage is None:
            raise GraphError(f"buffer of {self._size} bytes: used after it was freed")
        return self._storage

    def typed(self, dtype: torch.dtype) -> torch.Tensor:
        """The same bytes as elements of `dtype`."""
        found = self._typed.get(dtype)
        if found is None:
            found = self._typed[dtype] = self.storage.view(dtype)
        return found

    def release(self) -> None:
        """Let the memory go."""
        self._storage = None
        self._typed.clear()


def host_storage(size: int) -> torch.Tensor:
    """Map `size` bytes of zeroed memory, rounded up to 64.

    Raises: OSError.
    """
    padded = -(-size // _GRAIN) * _GRAIN
    if padded == 0:
        return torch.empty(0, dtype=torch.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return torch.frombuffer(mmap.mmap(-1, padded, flags=flags), dtype=torch.uint8)


def device_storage(size: int, device: torch.device) -> torch.Tensor:
    """Take `size` bytes of zeroed memory on an accelerator, rounded up to 64."""
    padded = -(-size // _GRAIN) * _GRAIN
    return torch.zeros(padded, dtype=torch.uint8, device=device)


def place(tensor: Tensor) -> tuple[TorchBuffer, int]:
    """Return a tensor's buffer and its first byte there. Raises: GraphError as `place_in` does."""
    return place_in(tensor, TorchBuffer)


def region(tensor: Tensor, offset: int, size: int) -> tuple[TorchBuffer, int]:
    """Return the buffer and the first of these bytes. Raises: GraphError as `region_in` does."""
    return region_in(tensor, TorchBuffer, offset, size)


def element_view(tensor: Tensor) -> torch.Tensor:
    """View a tensor [ne0, ne1, ne2, ne3] as elements (ne3, ne2, ne1, ne0).

    Raises: GraphError for a quantised type, bounds, or strides between elements.
    """
    dtype = DTYPES.get(tensor.type)
    if dtype is None:
        raise GraphError(f"tensor '{tensor.name}': {tensor.type.name} has no single elements")
    buffer, start = region(tensor, 0, 0)
    size = TRAITS[tensor.type].type_size
    if start % size or any(nb % size for nb in tensor.nb):
        raise GraphError(
            f"tensor '{tensor.name}': offset {start} and strides {list(tensor.nb)}, expected "
            f"multiples of {size}"
        )
    strides = [nb // size for nb in reversed(_settled_strides(tensor))]
    return buffer.typed(dtype).as_strided(tensor.ne[::-1], strides, start // size)


def _settled_strides(tensor: Tensor) -> list[int]:
    """Strides in bytes, where a dimension of one has that of a tensor without gaps: it moves
    nowhere, but some of torch's kernels (tril and triu) take it for the distance of matrices.
    """
    if tensor.n_elements == 0:
        return list(tensor.nb)
    strides = [TRAITS[tensor.type].type_size if tensor.ne[0] == 1 else tensor.nb[0]]
    for i in (1, 2, 3):
        gapless = strides[i - 1] * tensor.ne[i - 1]
        strides.append(gapless if tensor.ne[i] == 1 else tensor.nb[i])
    return strides


def block_view(tensor: Tensor) -> torch.Tensor:
    """View a tensor as bytes (ne3, ne2, ne1, n_blocks, type_size).

    Raises: GraphError for bounds or a row that is not a whole number of blocks.
    """
    traits = TRAITS[tensor.type]
    if tensor.ne[0] % traits.block_size:
        raise GraphError(
            f"tensor '{tensor.name}': rows of {tensor.ne[0]}, expected a multiple of "
            f"{traits.block_size}"
        )
    buffer, start = region(tensor, 0, 0)
    sizes = (*tensor.ne[:0:-1], tensor.ne[0] // traits.block_size, traits.type_size)
    strides = (*tensor.nb[:0:-1], tensor.nb[0], 1)
    return buffer.storage.as_strided(sizes, strides, start)
