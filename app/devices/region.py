"""Where the bytes of a tensor lie in a local device's buffer: the bounds check of all of them."""

from typing import TypeVar

from app.errors import GraphError
from app.ggml.tensor import Buffer, Tensor

B = TypeVar("B", bound=Buffer)


def place_in(tensor: Tensor, kind: type[B]) -> tuple[B, int]:
    """Return a tensor's buffer of this kind and its first byte there.

    Raises: GraphError when it has none, or one of another device.
    """
    buffer, offset = tensor.buffer, tensor.offset
    if buffer is None and tensor.view_src is not None and tensor.view_src.buffer is not None:
        buffer = tensor.view_src.buffer
        offset = tensor.view_src.offset + tensor.view_offs
    if not isinstance(buffer, kind):
        held = "no buffer" if buffer is None else f"a {type(buffer).__name__}"
        raise GraphError(f"tensor '{tensor.name}': has {held}, expected a buffer of this device")
    return buffer, offset


def region_in(tensor: Tensor, kind: type[B], offset: int, size: int) -> tuple[B, int]:
    """Return the buffer of `tensor` and where in it its bytes `offset`…`offset + size` start.

    Raises: GraphError when they are not all in the tensor, or the tensor not all in the buffer.
    """
    buffer, start = place_in(tensor, kind)
    nbytes = tensor.nbytes
    if offset < 0 or size < 0 or offset + size > nbytes:
        raise GraphError(
            f"tensor '{tensor.name}': bytes {offset}…{offset + size}, expected within 0…{nbytes}"
        )
    if start < 0 or start + nbytes > buffer.size or min(tensor.nb) < 0:
        raise GraphError(
            f"tensor '{tensor.name}' {list(tensor.ne)} with strides {list(tensor.nb)}: bytes "
            f"{start}…{start + nbytes}, expected within its buffer of {buffer.size}"
        )
    return buffer, start + offset
