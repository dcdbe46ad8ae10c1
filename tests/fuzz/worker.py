"""A hostile client against a worker's session in this process, on real kernels.

One round is one client: it takes buffers, sends graphs and requests, whole and damaged, in any
order, and leaves. It must end in replies or in one SessionError that is no internal error; no byte
outside of what a graph's nodes may write changes; nothing is kept when it has gone; and another
client's answers stay the same to the bit.
"""

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final
from unittest import mock

from app.devices.base import Device, DeviceInfo, DeviceKind
from app.devices.host_memory import touched_bytes
from app.errors import GraphError, LlamaServeError
from app.ggml.graph import next_uid
from app.ggml.ops import VIEW_OPS, Op
from app.ggml.tensor import Tensor, TensorFlag
from app.ggml.types import GGMLType
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.constants import Cmd
from app.rpc_backend.wire.graph_codec import GraphCompute, describe_graph
from app.rpc_backend.wire.tensor import Place, to_tensor, to_wire
from app.rpc_backend.worker.session import SessionError
from tests.fuzz import guards
from tests.fuzz.caller import Caller, HasEndedError, Room, Worker
from tests.fuzz.canary import Canary, lay_out, sample_graph
from tests.fuzz.census import COMMAND, OPERATION, TYPE, Census
from tests.fuzz.damage import damaged_graph
from tests.fuzz.dice import Dice
from tests.fuzz.graphs import draft
from tests.fuzz.greet import access, greet
from tests.fuzz.pair import reduce
from tests.fuzz.post import post
from tests.fuzz.store import FuzzStore, offer
from tests.fuzz.talk import request
from tests.fuzz.transfer import transfer
from tests.fuzz.wild import SIZE, WildGraphs

MAX_BUFFER: Final = 1 << 22
CHECK_EVERY: Final = 20
_COLLECTIONS: Final = 10
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class SizedBuffer:
    """Stands for a buffer of the worker while a graph is made."""

    size: int


@dataclass(slots=True)
class WorkerTarget:
    """One device, the canary on it, and what has happened so far."""

    device: Device
    store: FuzzStore
    census: Census
    outcomes: Counter[str] = field(default_factory=Counter)
    worker: Worker = field(init=False)
    canary: Canary = field(init=False)
    _n_live: int = field(init=False)

    def __post_init__(self) -> None:
        self.worker = Worker([self.device], self.census, self.store)
        self.census.expect(COMMAND, (command.name for command in Cmd))
        self.census.expect(OPERATION, (op.name for op in self.device.ops()))
        self.census.expect(TYPE, (type_.name for type_ in GGMLType))
        self.canary = Canary(self.device)
        self._n_live = guards.n_live()

    def round(self, seed: int) -> None:
        """Be one client.

        Raises: AssertionError saying what went wrong.
        """
        guards.Side.behind = seed % 2 == 0
        client = _Client(Dice(seed), self)
        try:
            client.run()
        finally:
            client.link.session.close()
            self.outcomes["failures told"] += client.link.n_errors
        assert not guards.violations, guards.violations
        if seed % CHECK_EVERY == 0:
            self.check()

    def check(self) -> None:
        """Look at what rounds must leave alone."""
        self.canary.check()
        held = _n_held(self._n_live)
        assert held <= 0, f"{held} buffers of clients that left are still held"

    def n_bytes(self) -> int:
        """Memory of the worker."""
        return touched_bytes()

    def close(self) -> None:
        """Give everything back."""
        self.canary.close()
        self.device.close()


def _n_held(expected: int) -> int:
    """Buffers beyond the expected ones, once nothing more is let go: a thread that has just ended,
    or a generator in a cycle, holds what it saw a little longer.
    """
    for _ in range(_COLLECTIONS):
        gc.collect()
        if guards.n_live() <= expected:
            break
        time.sleep(_PAUSE_S)
    return guards.n_live() - expected


class _Client:
    """The client of one round."""

    def __init__(self, dice: Dice, target: WorkerTarget) -> None:
        self.dice = dice
        self.target = target
        self.version = dice.choice((7, 8))
        self.link = Caller(target.worker, self.version, access(dice))
        self.rooms: list[Room] = []
        self.uids: list[int] = []

    def run(self) -> None:
        """Do up to a dozen things, the first that the worker does not accept being the last."""
        dice, link = self.dice, self.link
        actions: tuple[Callable[[], None], ...] = (
            *(self._send_case,) * 6,
            *(self._send_sample,) * 2,
            *(self._send_wild,) * 4,
            *(self._recompute,) * 2,
            *(self._talk,) * 6,
            lambda: offer(dice, link, self.target.store),
            lambda: post(dice, link, self.target.worker),
            lambda: reduce(dice, link),
            lambda: transfer(dice, link),
        )
        try:
            greet(dice, link)
            self._take(self.dice.choice((0, 1, 64, 1000, 1 << 16)))
            for _ in range(self.dice.randint(1, 12)):
                self.dice.choice(actions)()
            self.target.outcomes["clients that left"] += 1
        except SessionError as error:
            assert "internal error" not in str(error), error
            self.target.outcomes["clients cut off"] += 1
        except HasEndedError:
            self.target.outcomes["clients that stopped in a request"] += 1
        except LlamaServeError as error:
            # What this end cannot even say.
            assert isinstance(error, GraphError), error
            self.target.outcomes["not sayable"] += 1

    def _take(self, size: int) -> Room:
        self.rooms.append(self.link.take(size))
        return self.rooms[-1]

    def _talk(self) -> None:
        data = request(self.dice, self.version, self.rooms)
        if self.dice.chance(0.1):
            data = self.dice.randbytes(self.dice.randrange(1, 400))
        self.target.outcomes["requests"] += 1
        if not self.link.session.is_between_requests:
            raise HasEndedError
        self.link.raw(data)

    def _recompute(self) -> None:
        uid = self.dice.choice(self.uids) if self.uids else self.dice.u64()
        self.link.call(m.GraphRecompute(0, uid))
        self.target.outcomes["graphs asked for again"] += 1

    def _send_sample(self) -> None:
        graph = sample_graph()
        offsets, size = lay_out(graph)
        room = self._take(size)
        handle, base = room.place
        message = describe_graph(graph, 0, lambda t: Place(handle, base + offsets[id(t)]))
        self._compute(damaged_graph(self.dice, message), [room])

    def _send_case(self) -> None:
        """Send a graph of good cases, in one tight buffer or each tensor in a buffer of its own."""
        made = draft(self.dice, self.dice.choice((1, 1, 1, 2, 4)))
        if self.dice.chance(0.5):
            own = {id(root): self._take(root.nbytes) for root in made.roots.values()}
            places = {key: own[id(root)].place for key, root in made.roots.items()}
            rooms = list(own.values())
        else:
            rooms = [self._take(made.size)]
            handle, base = rooms[0].place
            places = {key: Place(handle, base + at) for key, at in made.offsets.items()}
        message = describe_graph(made.graph, 0, lambda t: places[id(t)])
        for leaf, data in made.data:
            if data:
                self.link.call(m.SetTensor(to_wire(leaf, places[id(leaf)]), 0, 0), data)
        if self.dice.chance(0.6):
            message = damaged_graph(self.dice, message)
        self._compute(message, rooms)

    def _send_wild(self) -> None:
        room = self._take(SIZE)
        handle, base = room.place
        graph, _ = WildGraphs(self.dice, SizedBuffer(SIZE), huge=0.1).graph()
        graph.uid = next_uid()
        message = describe_graph(graph, 0, lambda t: Place(handle, base + t.offset))
        noise = bytes(self.dice.choices((0, 0, 1, 2, 3, 4), k=SIZE // 64)) * 64
        self.link.call(m.SetTensor(room.whole, 0, 0), noise)
        self._compute(message, [room])

    def _compute(self, message: GraphCompute, rooms: list[Room]) -> None:
        """Send a graph; only the bytes of its nodes may have changed, whether it runs or not."""
        self.target.outcomes["graphs"] += 1
        before, n_errors = [self.link.read(room) for room in rooms], self.link.n_errors
        ran = False
        try:
            self.link.call(message)
            after = [self.link.read(room) for room in rooms]
            ran = self.link.n_errors == n_errors
        finally:
            self._count(message, ok=ran)
        nodes = _written(message)
        if ran:
            self.target.outcomes["graphs run"] += 1
            self.uids.append(message.uid)
        for room, old, new in zip(rooms, before, after, strict=True):
            if old != new:
                allowed = _allowed(room, nodes)
                changed = [i for i in range(room.size) if old[i] != new[i] and not allowed[i]]
                assert not changed, f"bytes {changed[:4]} were written, of no node: {message}"

    def _count(self, message: GraphCompute, *, ok: bool) -> None:
        """Count the operations of a graph that are known, and the types that they meet."""
        types = {}
        for tensor in message.tensors:
            with suppress(ValueError):
                types[tensor.id] = GGMLType(tensor.type).name
        for tensor in message.tensors:
            if tensor.op == Op.NONE or tensor.id in message.node_ids:
                with suppress(ValueError):
                    self.target.census.add(OPERATION, Op(tensor.op).name, ok=ok)
            met = {types.get(key) for key in (tensor.id, *tensor.src)} if tensor.op else set()
            for name in met - {None}:
                self.target.census.add(TYPE, str(name), ok=ok)


def _allowed(room: Room, nodes: list[tuple[Tensor, int]]) -> bytearray:
    """Ones where a node of the graph may write into a buffer."""
    allowed = bytearray(room.size)
    for node, address in nodes:
        start = address - room.place.address
        if 0 <= start < room.size:
            allowed[start : start + node.nbytes] = b"\1" * min(node.nbytes, room.size - start)
    return allowed


def _written(message: GraphCompute) -> list[tuple[Tensor, int]]:
    """Nodes that a worker computes, and their addresses; none of a graph without sense."""
    made = {tensor.id: tensor for tensor in message.tensors}
    try:
        nodes = [made[key] for key in message.node_ids]
        return [
            (to_tensor(node), node.data)
            for node in nodes
            if node.flags & TensorFlag.COMPUTE and node.op not in VIEW_OPS
        ]
    except (KeyError, GraphError):
        return []


@contextmanager
def open_device(executor: str, level: str | None, threads: int) -> Iterator[Device]:
    """Open the CPU with guards around its buffers; a buffer of more than 4 MiB is refused."""
    device = _native(level, threads) if executor == "native" else _reference()
    with guards.guards(), mock.patch.object(device, "max_size", lambda: MAX_BUFFER):
        yield device


def _native(level: str | None, threads: int) -> Device:
    from app.devices.native_device import NativeDevice
    from app.kernels.cpu.library import load_library

    library, why = load_library(level)
    assert library is not None, why
    return NativeDevice(DeviceInfo("CPU", "fuzz", DeviceKind.CPU), library, threads)


def _reference() -> Device:
    import torch

    from app.devices.torch_device import TorchDevice

    torch.set_num_threads(1)
    return TorchDevice(DeviceInfo("CPU", "fuzz", DeviceKind.CPU), torch.device("cpu"))
