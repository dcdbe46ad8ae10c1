"""Rectangles of a remote tensor: pieces of equal size at equal distances, in one request.

For slices of matrices, as a split over workers needs them. Version 7 has no such commands, so there
each piece is a request of its own; nothing else differs. Bounds and overlaps are checked here, as
stock workers hang up without a word.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from app.devices.base import Bytes
from app.errors import GraphError
from app.ggml.tensor import Tensor
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.wire import messages as m

_HAS_RECTANGLES: Final = 8


@dataclass(frozen=True, slots=True)
class Pieces:
    """`n_copies` pieces of `size` bytes, `stride` bytes apart, the first at byte `offset`."""

    offset: int
    size: int
    n_copies: int
    stride: int

    @property
    def total(self) -> int:
        """Bytes of all pieces."""
        return self.size * self.n_copies

    @property
    def offsets(self) -> range:
        """Where each piece begins."""
        step = max(self.stride, 1)
        return range(self.offset, self.offset + self.n_copies * step, step)


def set_tensor_2d(device: RpcDevice, tensor: Tensor, pieces: Pieces, data: Bytes) -> None:
    """Write `data`, which has no gaps, into pieces of a tensor.

    Raises: GraphError, DeviceLostError.
    """
    view = memoryview(data).cast("B")
    _check(tensor, pieces)
    if len(view) != pieces.total:
        raise GraphError(
            f"tensor '{tensor.name}': {len(view)} bytes of data: expected {pieces.n_copies} "
            f"times {pieces.size}"
        )
    if not view:
        return
    wire, connection = device.describe(tensor), device.connection
    if connection.version.major < _HAS_RECTANGLES:
        for at, offset in enumerate(pieces.offsets):
            piece = view[at * pieces.size : (at + 1) * pieces.size]
            is_last = at == pieces.n_copies - 1
            connection.tell(m.SetTensor(wire, 0, offset), piece, flush=is_last)
        return
    request = m.SetTensor2D(wire, pieces.offset, pieces.size, pieces.n_copies, pieces.stride)
    connection.tell(request, view)


def get_tensor_2d(device: RpcDevice, tensor: Tensor, pieces: Pieces) -> Future[bytes]:
    """Read pieces of a tensor, one after the other without gaps, after everything asked before.

    Raises: GraphError; DeviceLostError, from the call or from the future.
    """
    _check(tensor, pieces)
    wire, connection = device.describe(tensor), device.connection
    if pieces.total == 0:
        nothing: Future[bytes] = Future()
        nothing.set_result(b"")
        return nothing
    if connection.version.major < _HAS_RECTANGLES:
        return _joined(
            [connection.ask_bytes(m.GetTensor(wire, at, pieces.size)) for at in pieces.offsets]
        )
    request = m.GetTensor2D(wire, pieces.offset, pieces.size, pieces.n_copies, pieces.stride)
    return connection.ask_bytes(request)


def _joined(parts: list[Future[bytes]]) -> Future[bytes]:
    """Join parts that arrive in order; the last one is the last to arrive, however that goes."""
    whole: Future[bytes] = Future()
    whole.set_running_or_notify_cancel()

    def join(_: Future[bytes]) -> None:
        error = next((found for part in parts if (found := part.exception()) is not None), None)
        if error is not None:
            whole.set_exception(error)
        else:
            whole.set_result(b"".join(part.result() for part in parts))

    parts[-1].add_done_callback(join)
    return whole


def _check(tensor: Tensor, pieces: Pieces) -> None:
    where = f"tensor '{tensor.name}': {pieces.n_copies} pieces of {pieces.size} bytes"
    if min(pieces.offset, pieces.size, pieces.n_copies, pieces.stride) < 0:
        raise GraphError(f"{where}, {pieces.stride} apart from {pieces.offset}: expected no minus")
    if pieces.n_copies > 1 and pieces.stride < pieces.size:
        raise GraphError(f"{where}, {pieces.stride} apart: expected no overlap")
    end = pieces.offset
    if pieces.total:
        end += (pieces.n_copies - 1) * pieces.stride + pieces.size
    if end > tensor.nbytes:
        raise GraphError(
            f"{where}: bytes {pieces.offset} to {end}: expected a range within its {tensor.nbytes}"
        )
