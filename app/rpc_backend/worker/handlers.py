"""What the worker does for each request: the table `HANDLERS`, one function per row.

A handler gets the client's state and the message and returns the reply, None when there is none,
for a read the pieces of the answer, or what is left to a lane. It touches a buffer only after its
event. Requests with data are in `DATA_HANDLERS` and see one piece at a time. Bad input raises; the
session says so where the client understands it and closes the connection where it does not.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from app.devices.base import BufferUsage
from app.errors import OutOfMemoryError, UnsupportedError
from app.rpc_backend.errors import GroupError
from app.rpc_backend.rdma import decline
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.constants import VERSIONS
from app.rpc_backend.wire.graph_codec import GraphCompute
from app.rpc_backend.wire.tensor import to_tensor
from app.rpc_backend.wire.worker_core import Chunk
from app.rpc_backend.worker import extended, pushing, transfers
from app.rpc_backend.worker.graphs import CheckedGraph, build_graph
from app.rpc_backend.worker.lanes import Later
from app.rpc_backend.worker.state import ClientState
from app.rpc_backend.worker.transfers import Pieces, Promise

log = logging.getLogger(__name__)

Outcome = m.Message | Pieces | Later | Promise | None


def _hello(state: ClientState, message: m.Hello) -> Outcome:
    if state.access.secret is None:
        # Who has to know a secret is one of ours, which offers none, or a stranger.
        decline(state.peer, message.capabilities)
    return m.HelloReply(*VERSIONS[state.version], padding=int(state.access.announced))


def _device_facts(state: ClientState, message: x.DeviceFacts) -> Outcome:
    text = extended.device_facts(state, message)
    return Pieces(len(text), iter([text]))


def _device_count(state: ClientState, message: m.DeviceCount) -> Outcome:
    return m.DeviceCountReply(len(state.devices))


def _get_alignment(state: ClientState, message: m.GetAlignment) -> Outcome:
    return m.SizeReply(state.device(message.device).alignment())


def _get_max_size(state: ClientState, message: m.GetMaxSize) -> Outcome:
    return m.SizeReply(state.device(message.device).max_size())


def _get_device_memory(state: ClientState, message: m.GetDeviceMemory) -> Outcome:
    memory = state.budget.memory(state.device(message.device))
    return m.DeviceMemoryReply(memory.free, memory.total)


def _alloc_buffer(state: ClientState, message: m.AllocBuffer) -> Outcome:
    device = state.device(message.device)
    most = min(device.max_size(), state.budget.memory(device).free)
    if message.size > most or not state.buffers.has_room_for(message.size):
        state.note(logging.INFO, "buffer of %d bytes refused: up to %d", message.size, most)
        return m.AllocBufferReply(0, 0)
    try:
        buffer = device.alloc(message.size, BufferUsage.ANY)
    except OutOfMemoryError as error:
        state.note(logging.INFO, "buffer refused: %s", error)
        return m.AllocBufferReply(0, 0)
    held = state.buffers.add(message.device, device, buffer)
    return m.AllocBufferReply(held.handle, buffer.size)


def _buffer_get_base(state: ClientState, message: m.BufferGetBase) -> Outcome:
    return m.SizeReply(state.buffers.get(message.buffer).base)


def _free_buffer(state: ClientState, message: m.FreeBuffer) -> Outcome:
    state.buffers.get(message.buffer).event.wait()
    held = state.buffers.remove(message.buffer)
    state.graphs.forget_all()
    held.device.free(held.buffer)
    return None


def _buffer_clear(state: ClientState, message: m.BufferClear) -> Outcome:
    held = state.buffers.get(message.buffer)
    held.event.wait()
    held.device.clear(held.buffer, message.value)
    return None


def _get_alloc_size(state: ClientState, message: m.GetAllocSize) -> Outcome:
    tensor = to_tensor(message.tensor)
    tensor.src = tuple(to_tensor(source) if source.id else None for source in message.sources)
    return m.SizeReply(state.device(message.device).alloc_size(tensor))


def _graph_compute(state: ClientState, message: GraphCompute) -> Outcome:
    device = state.device(message.device)
    checked = state.graphs.find_equal(message)
    if checked is None:
        checked = _build_graph(state, message)
        reason = device.unsupported(checked.graph.nodes)
        if reason is not None:
            raise UnsupportedError(reason)
        state.graphs.keep(message, checked)
    state.n_graphs_sent += 1
    return _run_later(state, message.device, checked)


def _build_graph(state: ClientState, message: GraphCompute) -> CheckedGraph:
    graphs = state.graphs
    try:
        return build_graph(message, state.buffers, state.budget, graphs)
    except OutOfMemoryError:
        if graphs.by_uid:
            # As the client does; otherwise what it kept would stand in the way of its next one.
            graphs.forget_all()
            raise
        graphs.forget_unknown()
        return build_graph(message, state.buffers, state.budget, graphs)


def _graph_recompute(state: ClientState, message: m.GraphRecompute) -> Outcome:
    state.device(message.device)
    return _run_later(state, message.device, state.graphs.find(message.device, message.uid))


def _run_later(state: ClientState, index: int, checked: CheckedGraph) -> Later:
    device = state.device(index)
    state.n_graph_runs += 1
    return Later(index, lambda _: device.compute(checked.graph), checked.events)


def _wait_buffer(state: ClientState, message: x.WaitBuffer) -> Outcome:
    state.buffers.get(message.buffer).event.wait()
    return m.FlagReply(1)


def _comm_init(state: ClientState, message: m.CommInit) -> Outcome:
    state.device(message.device)
    try:
        state.groups.join(message)
    except GroupError as error:
        state.note(logging.INFO, "COMM_INIT refused: %s", error)
        return m.FlagReply(0)
    return m.FlagReply(1)


def _comm_allreduce(state: ClientState, message: m.CommAllreduce) -> Outcome:
    state.device(message.device)
    state.groups.all_reduce(message.device, state.buffers.resolve_region(message.tensor))
    return None


def _comm_free(state: ClientState, message: m.CommFree) -> Outcome:
    state.device(message.device)
    state.groups.leave(message.device)
    return None


Handler = Callable[[ClientState, Any], Outcome]
DataHandler = Callable[[ClientState, Any, Chunk], None]

HANDLERS: Final[dict[type, Handler]] = {
    m.Hello: _hello,
    m.DeviceCount: _device_count,
    m.GetAlignment: _get_alignment,
    m.GetMaxSize: _get_max_size,
    m.GetDeviceMemory: _get_device_memory,
    m.AllocBuffer: _alloc_buffer,
    m.BufferGetBase: _buffer_get_base,
    m.FreeBuffer: _free_buffer,
    m.BufferClear: _buffer_clear,
    m.InitTensor: transfers.init_tensor,
    m.GetAllocSize: _get_alloc_size,
    m.SetTensorHash: transfers.set_tensor_hash,
    m.GetTensor: transfers.get_tensor,
    m.GetTensor2D: transfers.get_tensor_2d,
    m.CopyTensor: transfers.copy_tensor,
    m.MemsetTensor: transfers.memset_tensor,
    GraphCompute: _graph_compute,
    m.GraphRecompute: _graph_recompute,
    m.CommInit: _comm_init,
    m.CommAllreduce: _comm_allreduce,
    m.CommFree: _comm_free,
    x.Extend: extended.extend,
    x.Prove: extended.prove,
    x.Ping: extended.ping,
    x.DeviceFacts: _device_facts,
    x.WaitBuffer: _wait_buffer,
    x.OpenDoor: pushing.open_door,
    x.PushTensor: pushing.push_tensor,
    x.TakeDelivery: pushing.take_delivery,
}

BESIDE: Final = (m.SetTensorHash, m.InitTensor)
"""Requests that do not rest on promised replies before them: a load is made of both."""

DATA_HANDLERS: Final[dict[type, DataHandler]] = {
    m.SetTensor: transfers.set_tensor,
    m.SetTensor2D: transfers.set_tensor_2d,
    x.Deliver: pushing.deliver,
}
