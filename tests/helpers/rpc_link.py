"""Client and worker without sockets between them, and a real worker on loopback.

`MemoryLink` joins a client's core and a worker's session in memory. `serving` runs a real RpcServer
in a thread. `spread` lays tensors out in one buffer of a device, whatever device that is.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from app.devices.base import BufferUsage, Device
from app.ggml.graph import Graph
from app.ggml.tensor import Buffer, Tensor
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.client_core import ClientCore, Reply
from app.rpc_backend.wire.tensor import Place, WireTensor, to_wire
from app.rpc_backend.worker.budget import Budget
from app.rpc_backend.worker.server import RpcServer, ServerSettings, bind
from app.rpc_backend.worker.session import Session
from app.rpc_backend.worker.tensor_store import TensorStore


def received(core: ClientCore, data: bytes) -> list[Reply]:
    """Give a client's core bytes from its worker and return the replies that they complete."""
    replies = []
    while data:
        room = core.writable()
        n = min(len(room), len(data))
        room[:n] = data[:n]
        room.release()
        core.wrote(n)
        data = data[n:]
        while (reply := core.next_reply()) is not None:
            replies.append(reply)
    return replies


class MemoryLink:
    """One client of a worker that lives in the same thread."""

    def __init__(
        self,
        devices: Sequence[Device],
        version: int = 8,
        cache: TensorStore | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.session = Session(devices, version, cache, budget=budget)
        self.core = ClientCore()
        self._receive(self.raw(self.core.hello()))

    def raw(self, data: bytes) -> bytes:
        """Give bytes to the worker and return what it sends until all that they ask is done.

        Raises: SessionError.
        """
        answers = []
        while data:
            room = self.session.writable()
            n = min(len(room), len(data))
            assert n > 0
            room[:n] = data[:n]
            room.release()
            answers += [bytes(piece) for piece in self.session.wrote(n)]
            data = data[n:]
        for held in self.session.state.buffers:
            held.event.wait()
        answers += [bytes(piece) for piece in self.session.wrote(0)]
        return b"".join(answers)

    def call(self, message: m.Message, data: bytes = b"") -> m.Message | bytearray | None:
        """Send a request; return the reply if it has one.

        Raises: SessionError.
        """
        head, expected = self.core.request(message, len(data))
        answer = self.raw(head + data)
        if expected is None:
            assert answer == b""
            return None
        return self._receive(answer)

    def alloc(self, size: int, device: int = 0) -> Place:
        """Make a buffer; return its handle and base."""
        reply = self.call(m.AllocBuffer(device, size))
        assert isinstance(reply, m.AllocBufferReply)
        assert reply.buffer != 0
        base = self.call(m.BufferGetBase(reply.buffer))
        assert isinstance(base, m.SizeReply)
        return Place(reply.buffer, base.value)

    def put(self, tensor: Tensor, at: Place, offset: int = 0) -> WireTensor:
        """Describe a tensor that lies at `offset` of a buffer."""
        return to_wire(tensor, Place(at.handle, at.address + offset))

    def _receive(self, data: bytes) -> m.Message | bytearray:
        replies = received(self.core, data)
        assert len(replies) == 1
        return replies[0].body


@contextmanager
def serving(
    devices: Sequence[Device], settings: ServerSettings | None = None
) -> Iterator[RpcServer]:
    """Run a worker on a free port of loopback."""
    server = RpcServer(bind("127.0.0.1", 0), devices, settings)
    thread = threading.Thread(target=server.serve, name="server")
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def spread(device: Device, tensors: Sequence[Tensor]) -> Buffer:
    """Give each tensor that is not a view its own place in one new buffer, and views theirs."""
    end = 0
    roots = [tensor for tensor in tensors if tensor.view_src is None]
    for tensor in roots:
        tensor.offset = end
        end += -(-device.alloc_size(tensor) // device.alignment()) * device.alignment()
    buffer = device.alloc(max(end, 1), BufferUsage.ANY)
    for tensor in roots:
        tensor.buffer = buffer
    for tensor in tensors:
        if tensor.view_src is not None:
            tensor.buffer = buffer
            tensor.offset = tensor.view_src.offset + tensor.view_offs
    return buffer


def spread_graph(device: Device, graph: Graph) -> Buffer:
    """Give every tensor of a graph its place."""
    return spread(device, graph.tensors())
