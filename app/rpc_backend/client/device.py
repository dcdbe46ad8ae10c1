"""A remote worker's device behind the device contract.

Writing, clearing and computing only send; reading returns a future; nothing waits but what needs an
answer to go on (making a buffer, memory, alloc sizes, copies). A graph with a uid is sent once and
named afterwards, for as long as the worker keeps it. Buffers and places are `memory.py`'s.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Final

from app.devices.base import BufferUsage, Bytes, DeviceInfo, DeviceKind, DeviceMemory, Weight
from app.errors import DeviceLostError, GraphError
from app.ggml.graph import Graph
from app.ggml.ops import FORBIDDEN_OPS, VIEW_OPS, Op
from app.ggml.tensor import Buffer, Tensor
from app.ggml.verify import KNOWN_OPS
from app.rpc_backend.client.connection import WorkerConnection
from app.rpc_backend.client.facts import DeviceFacts, read_facts
from app.rpc_backend.client.memory import RemoteMemory, RpcBuffer, check_range, needs_padding
from app.rpc_backend.client.push import can_push, push
from app.rpc_backend.client.upload import Upload
from app.rpc_backend.errors import RemoteProtocolError
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.extensions import DeviceFacts as DeviceFactsRequest
from app.rpc_backend.wire.extensions import WaitBuffer
from app.rpc_backend.wire.graph_codec import describe_graph
from app.rpc_backend.wire.tensor import WireTensor

log = logging.getLogger(__name__)

_HOLD_BYTES: Final = 16 * 1024


class RpcDevice:
    """One device of a worker; calls take effect on the worker in call order."""

    def __init__(
        self, connection: WorkerConnection, index: int, name: str, timeout_s: float | None = None
    ) -> None:
        """Take device `index` of an open connection.

        Raises: DeviceLostError.
        """
        self._connection = connection
        self._index = index
        self._info = DeviceInfo(name, str(connection.endpoint), DeviceKind.REMOTE)
        self._memory = RemoteMemory(connection, index, name, timeout_s)
        self._facts = self._ask_facts(timeout_s) if connection.is_extended else None
        self._closed = False
        connection.retain()

    @property
    def info(self) -> DeviceInfo:
        """Name, endpoint and kind."""
        return self._info

    @property
    def index(self) -> int:
        """Number of the device on its worker."""
        return self._index

    @property
    def connection(self) -> WorkerConnection:
        """The connection that this device shares with its neighbours."""
        return self._connection

    @property
    def facts(self) -> DeviceFacts | None:
        """What a worker of our own says of the device; stock workers cannot say."""
        return self._facts

    def _ask_facts(self, timeout_s: float | None) -> DeviceFacts:
        text = self._connection.call(DeviceFactsRequest(self._index), bytes, timeout_s)
        try:
            return read_facts(text)
        except RemoteProtocolError as error:
            raise DeviceLostError(f"RPC worker {self._connection.endpoint}: {error}") from None

    def memory(self) -> DeviceMemory:
        """Ask for free and total bytes.

        Raises: DeviceLostError.
        """
        reply = self._connection.call(m.GetDeviceMemory(self._index), m.DeviceMemoryReply)
        return DeviceMemory(reply.free, reply.total)

    def alignment(self) -> int:
        """Alignment in bytes that tensors need inside a buffer."""
        return self._memory.alignment

    def max_size(self) -> int:
        """Largest buffer in bytes."""
        return self._memory.max_size

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes that a tensor needs in a buffer, padding and scratch included; asks the worker
        once per layout.

        Raises: DeviceLostError.
        """
        return self._memory.alloc_size(tensor)

    def alloc(self, size: int, usage: BufferUsage) -> RpcBuffer:
        """Make a buffer.

        Raises: OutOfMemoryError, DeviceLostError.
        """
        return self._memory.alloc(size, usage)

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back; every kept graph of the worker is forgotten.

        Raises: DeviceLostError.
        """
        self._memory.free(buffer)

    def clear(self, buffer: Buffer, value: int) -> None:
        """Fill a whole buffer with one byte value.

        Raises: DeviceLostError.
        """
        self._connection.tell(m.BufferClear(self._memory.own(buffer, "clear").handle, value))

    def init_tensor(self, tensor: Tensor) -> None:
        """Tell of a quantised tensor whose rows are not a multiple of 512 elements.

        Raises: DeviceLostError, GraphError.
        """
        if needs_padding(tensor):
            self._connection.tell(m.InitTensor(self.describe(tensor)))

    def set_tensor(self, tensor: Tensor, data: Bytes, offset: int = 0) -> None:
        """Write bytes into a tensor from byte `offset` on. A few bytes wait for the request that
        needs them, so that the inputs of one step leave in one system call.

        Raises: DeviceLostError, GraphError.
        """
        view = memoryview(data).cast("B")
        check_range(tensor, offset, len(view))
        request = m.SetTensor(self.describe(tensor), 0, offset)
        self._connection.tell(request, view, flush=len(view) > _HOLD_BYTES)

    def set_weights(self, weights: Iterable[Weight]) -> None:
        """Bring whole tensors to the worker; those that it has under their hash are not sent.

        Raises: DeviceLostError, GraphError.
        """
        upload = Upload(self._connection)
        upload.run((self.describe(weight.tensor), weight) for weight in weights)
        upload.wait(self._connection.ask(m.GetAlignment(self._index), m.SizeReply))

    def memset_tensor(self, tensor: Tensor, value: int, offset: int, size: int) -> None:
        """Fill part of a tensor with one byte value.

        Raises: DeviceLostError, GraphError.
        """
        check_range(tensor, offset, size)
        self._connection.tell(m.MemsetTensor(self.describe(tensor), offset, size, value))

    def get_tensor(self, tensor: Tensor, offset: int, size: int) -> Future[bytes]:
        """Read bytes of a tensor, after everything asked before.

        Raises: DeviceLostError, from the call or from the future; GraphError.
        """
        check_range(tensor, offset, size)
        return self._connection.ask_bytes(m.GetTensor(self.describe(tensor), offset, size))

    def copy_tensor(self, source: Tensor, target: Tensor) -> None:
        """Copy between two tensors of this device; through this machine where the worker's backend
        cannot.

        Raises: DeviceLostError, GraphError.
        """
        if source.nbytes != target.nbytes:
            raise GraphError(
                f"copy of '{source.name}' ({source.nbytes} bytes) to '{target.name}' "
                f"({target.nbytes} bytes): expected equal sizes"
            )
        request = m.CopyTensor(self.describe(source), self.describe(target))
        if not self._connection.call(request, m.FlagReply).value:
            self.set_tensor(target, self.get_tensor(source, 0, source.nbytes).result())

    def push(self, source: Tensor, other: "RpcDevice", target: Tensor) -> None:
        """Copy a tensor of this device to one of equal size on another worker's: straight from
        worker to worker where both are our own and can meet, else through this machine. `target`
        has it for everything that `other` is asked afterwards. A push that fails fails what both
        are asked afterwards, once; the next ones go through this machine.

        Raises: DeviceLostError, GraphError.
        """
        if source.nbytes != target.nbytes:
            raise GraphError(
                f"push of '{source.name}' ({source.nbytes} bytes) to '{target.name}' "
                f"({target.nbytes} bytes): expected equal sizes"
            )
        here, there = self._connection, other.connection
        if here is there:
            self.copy_tensor(source, target)
        elif can_push(here, there):
            described = self.describe(source), other.describe(target)
            push(here, described[0], there, described[1], source.nbytes)
        else:
            other.set_tensor(target, self.get_tensor(source, 0, source.nbytes).result())

    def compute(self, graph: Graph) -> None:
        """Run a graph; one that the worker still keeps is only named.

        Raises: DeviceLostError; GraphError when a tensor does not lie on this worker or does not
        fit into the protocol.
        """
        connection, device = self._connection, self._index
        with connection.lock:
            # Asked for once: a failure that arrives meanwhile may be this graph's, and what is
            # noted here is forgotten when `kept` is asked for next.
            kept = connection.kept
            if kept.has(device, graph.uid):
                connection.tell(m.GraphRecompute(device, graph.uid))
                return
            connection.tell(describe_graph(graph, device, self._memory.place))
            kept.sent(device, graph.uid)

    def ops(self) -> frozenset[Op]:
        """What a worker of our own says that it runs; of a stock one, all that may be sent."""
        ops = None if self._facts is None else self._facts.ops
        return KNOWN_OPS if ops is None else ops

    def unsupported(self, nodes: Sequence[Tensor]) -> str | None:
        """Reason why one of `nodes` cannot run; a stock worker cannot be asked, so only what no
        worker may run is refused then.
        """
        ops = None if self._facts is None else self._facts.ops
        for node in nodes:
            if node.op in FORBIDDEN_OPS:
                return f"{node.op.name} carries function pointers and is not sent to workers"
            if ops is not None and node.op not in ops and node.op not in VIEW_OPS:
                return f"{node.op.name}: {self._info.description} does not have this operation"
        return None

    def synchronize(self) -> None:
        """Wait until everything asked before is done: stock workers answer in order, our own read
        on while a graph runs and are asked about each buffer.

        Raises: DeviceLostError; what a worker of our own says of a request that failed.
        """
        connection = self._connection
        handles = (
            [buffer.handle for buffer in self._memory.buffers] if connection.is_extended else []
        )
        answers = [connection.ask(WaitBuffer(handle), m.FlagReply) for handle in handles]
        connection.call(m.GetAlignment(self._index), m.SizeReply)
        for answer in answers:
            answer.result()

    def close(self) -> None:
        """Free all buffers; the last device of a connection closes it, which frees everything."""
        if self._closed:
            return
        self._closed = True
        if self._connection.release():
            return
        try:
            for buffer in self._memory.buffers:
                self.free(buffer)
        except DeviceLostError as error:
            log.debug("%s: its worker has freed everything: %s", self._info.name, error)

    def describe(self, tensor: Tensor) -> WireTensor:
        """Describe a tensor that lies on this device's worker, as requests name it.

        Raises: GraphError.
        """
        return self._memory.describe(tensor)
