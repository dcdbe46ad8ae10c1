"""Handlers of everything that goes into a tensor, out of it, or from one to another.

Rows of the table in `handlers.py`. Each checks the range that the client names and waits for the
graphs that touch the buffer. What is read is read as it is sent, what is written is written as it
arrives, so that a tensor of any length costs one piece of memory.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from app.errors import GraphError
from app.rpc_backend.errors import RemoteProtocolError
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.wire.worker_core import Chunk
from app.rpc_backend.worker.buffers import Region
from app.rpc_backend.worker.state import ClientState

_READ_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Pieces:
    """A reply of `size` bytes, read from the device as it is sent."""

    size: int
    pieces: Iterator[Body]


@dataclass(frozen=True, slots=True)
class Promise:
    """A reply that another thread makes; further requests of the kinds in `handlers.BESIDE` may be
    handled meanwhile.
    """

    reply: Future[m.FlagReply]


def init_tensor(state: ClientState, message: m.InitTensor) -> None:
    """Tell the device of a tensor that it may want to pad."""
    # Stock clients may send this before the tensor has memory; there is nothing to pad then.
    if message.tensor.buffer or message.tensor.data:
        region = state.buffers.resolve_region(message.tensor)
        region.device.init_tensor(region.tensor)


def set_tensor_hash(state: ClientState, message: m.SetTensorHash) -> m.FlagReply | Promise:
    """Fill a tensor with data of this hash, if the worker has them."""
    region = state.buffers.resolve_region(message.tensor, message.offset)

    def write(piece: Body, at: int) -> None:
        region.device.set_tensor(region.tensor, piece, region.offset + at)

    store = state.cache
    if store is None:
        return m.FlagReply(0)

    def restore() -> m.FlagReply:
        return m.FlagReply(int(store.restore(message.hash, region.size, write)))

    return Promise(state.beside.submit(restore))


def get_tensor(state: ClientState, message: m.GetTensor) -> Pieces:
    """Read bytes of a tensor."""
    region = state.buffers.resolve_region(message.tensor, message.offset, message.size)
    return Pieces(message.size, _read(region))


def _read(region: Region) -> Iterator[Body]:
    for at in range(0, region.size, _READ_BYTES):
        size = min(_READ_BYTES, region.size - at)
        yield region.device.get_tensor(region.tensor, region.offset + at, size).result()


def get_tensor_2d(state: ClientState, message: m.GetTensor2D) -> Pieces:
    """Read pieces of a tensor that lie a stride apart."""
    region = _strided(state, message)
    return Pieces(message.reply_bytes, _read_strided(region, message))


def _read_strided(region: Region, message: m.GetTensor2D) -> Iterator[Body]:
    if message.size == 0:
        return
    for i in range(message.n_copies):
        start = region.offset + i * message.stride
        yield from _read(Region(region.held, region.tensor, start, message.size))


def _strided(state: ClientState, message: m.SetTensor2D | m.GetTensor2D) -> Region:
    """Check the whole span that a strided transfer may touch."""
    if message.n_copies > 1 and message.stride < message.size:
        raise RemoteProtocolError(
            f"pieces of {message.size} bytes {message.stride} bytes apart: expected no overlap"
        )
    span = message.size + (message.n_copies - 1) * message.stride if message.n_copies else 0
    return state.buffers.resolve_region(message.tensor, message.offset, span)


def copy_tensor(state: ClientState, message: m.CopyTensor) -> m.FlagReply:
    """Copy a tensor to one of equal size, also to another device of this worker."""
    source = state.buffers.resolve_region(message.source)
    target = state.buffers.resolve_region(message.target)
    if source.size != target.size:
        raise GraphError(
            f"copy of '{source.tensor.name}' ({source.size} bytes) to '{target.tensor.name}' "
            f"({target.size}): expected equal sizes"
        )
    if source.device is target.device:
        source.device.copy_tensor(source.tensor, target.tensor)
        return m.FlagReply(1)
    at = 0
    for piece in _read(source):
        target.device.set_tensor(target.tensor, piece, at)
        at += len(piece)
    return m.FlagReply(1)


def memset_tensor(state: ClientState, message: m.MemsetTensor) -> None:
    """Fill bytes of a tensor with one value."""
    region = state.buffers.resolve_region(message.tensor, message.offset, message.size)
    region.device.memset_tensor(region.tensor, message.value, region.offset, region.size)


def set_tensor(state: ClientState, message: m.SetTensor, chunk: Chunk) -> None:
    """Write the next bytes of a tensor, and keep them in the cache where the client says so."""
    region = state.buffers.resolve_region(message.tensor, message.offset, chunk.total)
    if chunk.at == 0 and message.cache and state.cache is not None:
        state.writer = state.cache.writer(chunk.total)
    if len(chunk.data):
        region.device.set_tensor(region.tensor, chunk.data, region.offset + chunk.at)
    if state.writer is not None:
        state.writer.write(chunk.data)
        if chunk.is_last:
            state.writer.finish()
            state.writer = None


def set_tensor_2d(state: ClientState, message: m.SetTensor2D, chunk: Chunk) -> None:
    """Write the next bytes of pieces that lie a stride apart."""
    region = _strided(state, message)
    if chunk.total != message.size * message.n_copies:
        raise RemoteProtocolError(
            f"{chunk.total} bytes of data: expected {message.n_copies} times {message.size}"
        )
    view, at = memoryview(chunk.data), chunk.at
    while view:
        copy, within = divmod(at, message.size)
        piece = view[: message.size - within]
        offset = region.offset + copy * message.stride + within
        region.device.set_tensor(region.tensor, piece, offset)
        at += len(piece)
        view = view[len(piece) :]
