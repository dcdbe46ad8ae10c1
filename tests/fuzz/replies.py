"""The client against workers that lie (`liar.py`): whatever comes back ends in a result or a typed
error.

One round is a connection or two, plain or TLS, with a secret or without, from HELLO on, with a few
calls of every kind.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from unittest import mock

from app.devices.base import BufferUsage, Weight
from app.devices.host_memory import touched_bytes
from app.errors import LlamaServeError
from app.ggml.graph import Graph
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.client.group import WorkerPair
from app.rpc_backend.client.pulse import TransportLimits
from app.rpc_backend.client.strided import Pieces, get_tensor_2d, set_tensor_2d
from app.rpc_backend.errors import LocalProtocolError
from app.rpc_backend.streams.context import Certificate, worker_certificate
from app.rpc_backend.streams.settings import ClientTls
from app.rpc_backend.wire.client_core import ClientCore, Reply
from app.rpc_backend.wire.commands import COMMANDS
from app.rpc_backend.wire.extensions import ErrorReply
from app.rpc_backend.worker.access import OPEN, Access
from tests.fuzz.canary import fill, lay_out, sample_graph
from tests.fuzz.census import REPLY, Census
from tests.fuzz.dice import Dice
from tests.fuzz.liar import STALL_S, Manner, liar
from tests.helpers.certificates import Certificates
from tests.helpers.process import free_port

HANG_S: Final = 60.0
SETTINGS: Final = ClientSettings(
    connect_timeout_s=STALL_S,
    limits=TransportLimits(
        request_timeout_s=STALL_S, ping_after_s=STALL_S / 2, ping_timeout_s=STALL_S
    ),
    hash_threshold_bytes=256,
)
_SECRET: Final = b"a secret"
_HAS_PAIRS: Final = 8
_ERRORS: Final = ("a failure in the place of a reply", "a failure between replies")


@dataclass(slots=True)
class ReplyTarget:
    """Counts how rounds ended and which replies came through; `folder` is for certificates."""

    folder: Path
    outcomes: Counter[str] = field(default_factory=Counter)
    census: Census = field(default_factory=Census)
    _tls: Certificate = field(init=False)
    _trust: ClientTls = field(init=False)

    def __post_init__(self) -> None:
        certificates = Certificates(self.folder)
        self._tls = worker_certificate(certificates.signed("127.0.0.1"))
        self._trust = certificates.trust
        answered = (c.number.name for c in COMMANDS if c.response is not None)
        self.census.expect(REPLY, (*answered, *_ERRORS))

    def round(self, seed: int) -> None:
        """Be the client of one lying worker, or of two.

        Raises: AssertionError when a call hangs or ends in anything but a typed error.
        """
        dice = Dice(seed)
        self.check()
        with ExitStack() as stack:
            stack.enter_context(_counting(self.census))
            try:
                device = self._open(dice, seed + 1, stack)
            except LlamaServeError as error:
                self.outcomes[f"not opened: {type(error).__name__}"] += 1
                return
            other = None
            if dice.chance(0.4):
                with suppress(LlamaServeError):
                    other = self._open(dice, seed + 2, stack)
            try:
                self._use(dice, device, other)
                self.outcomes["all answered"] += 1
            except LlamaServeError as error:
                _judge(error)
                self.outcomes[type(error).__name__] += 1
            except FutureTimeoutError:
                raise AssertionError(f"a reply was still awaited after {HANG_S} s") from None

    def check(self) -> None:
        """Every round has ended its threads."""
        left = [t.name for t in threading.enumerate() if t.name.startswith("rpc-")]
        assert not left, f"threads are left: {left}"

    def n_bytes(self) -> int:
        """Memory of the client."""
        return touched_bytes()

    def _open(self, dice: Dice, seed: int, stack: ExitStack) -> RpcDevice:
        """Connect to a liar; it and its devices end with the stack.

        Raises: LlamaServeError.
        """
        tls, secret = dice.chance(0.2), dice.chance(0.2)
        manner = Manner(
            dice.choice((7, 8, 8)),
            Access(_SECRET, demands_tls=tls) if secret else replace(OPEN, demands_tls=tls),
            self._tls if tls else None,
        )
        settings = replace(
            SETTINGS,
            tls=self._trust if tls != dice.chance(0.05) else None,
            secret=dice.choice((_SECRET, _SECRET, _SECRET, b"another", None)) if secret else None,
        )
        endpoint = stack.enter_context(liar(Dice(seed), manner))
        (device, *others) = open_workers([endpoint], settings)
        for one in (*others, device):
            stack.callback(_close, one)
        return device

    def _use(self, dice: Dice, device: RpcDevice, other: RpcDevice | None) -> None:
        graph = sample_graph()
        offsets, size = lay_out(graph)
        buffer = device.alloc(size, dice.choice((BufferUsage.ANY, BufferUsage.WEIGHTS)))
        for tensor in graph.tensors():
            tensor.buffer, tensor.offset = buffer, offsets[id(tensor)]
        calls = _calls(dice, device, graph)
        if other is not None:
            calls += _calls_of_two(dice, device, other)
        for _ in range(dice.randint(1, 12)):
            try:
                dice.choice(calls)()
                self.outcomes["calls answered"] += 1
            except LlamaServeError as error:
                _judge(error)
                self.outcomes["calls failed"] += 1
        device.synchronize()


def _judge(error: LlamaServeError) -> None:
    """Whatever a worker does, it is never this end that spoke out of turn."""
    assert not isinstance(error, LocalProtocolError), repr(error)


def _close(device: RpcDevice) -> None:
    with suppress(LlamaServeError):
        device.close()


@contextmanager
def _counting(census: Census) -> Iterator[None]:
    """Count what comes out of every client's core meanwhile, and what is refused there."""
    read = ClientCore.next_reply

    def next_reply(core: ClientCore) -> Reply | None:
        due = core.next_expected
        try:
            reply = read(core)
        except LocalProtocolError:
            raise
        except LlamaServeError:
            census.add(REPLY, "none due" if due is None else due.command.number.name, ok=False)
            raise
        if reply is not None:
            is_error = isinstance(reply.body, ErrorReply)
            name = _ERRORS[reply.command is None] if is_error else None
            assert name is not None or reply.command is not None
            census.add(REPLY, name or reply.command.number.name)  # type: ignore[union-attr]
        return reply

    with mock.patch.object(ClientCore, "next_reply", next_reply):
        yield


def _calls(dice: Dice, device: RpcDevice, graph: Graph) -> list[Callable[[], object]]:
    tensors = [t for t in graph.tensors() if t.view_src is None]
    odd = new_tensor(GGMLType.Q4_0, (32, 3), "odd")
    whole = max(tensors, key=lambda t: t.nbytes)
    some = Pieces(0, 16, whole.nbytes // 64, 48)

    def any_tensor() -> Tensor:
        return dice.choice(tensors)

    def read() -> None:
        tensor = any_tensor()
        data = device.get_tensor(tensor, 0, tensor.nbytes).result(HANG_S)
        assert len(data) == tensor.nbytes, "a read of another length"

    def read_rectangle() -> None:
        assert len(get_tensor_2d(device, whole, some).result(HANG_S)) == some.total

    def write() -> None:
        leaf = dice.choice(graph.leaves())
        device.set_tensor(leaf, fill(leaf))

    def upload() -> None:
        leaves = [leaf for leaf in graph.leaves() if leaf.view_src is None]
        device.set_weights(_weight(leaf, dice.u64()) for leaf in leaves)

    def take() -> None:
        device.free(device.alloc(dice.choice((0, 64, 1 << 20)), BufferUsage.ANY))

    return [
        read,
        read,
        read_rectangle,
        write,
        upload,
        take,
        device.memory,
        device.synchronize,
        lambda: set_tensor_2d(device, whole, some, bytes(some.total)),
        lambda: device.copy_tensor(tensors[0], tensors[0]),
        lambda: device.alloc_size(odd),
        lambda: device.compute(graph),
        lambda: device.compute(graph),
        lambda: device.memset_tensor(any_tensor(), 1, 0, 1),
        lambda: device.unsupported(graph.nodes),
    ]


def _calls_of_two(dice: Dice, first: RpcDevice, second: RpcDevice) -> list[Callable[[], object]]:
    pair = [new_tensor(GGMLType.F32, (64,), name) for name in ("here", "there")]
    for device, tensor in zip((first, second), pair, strict=True):
        tensor.buffer = device.alloc(256, BufferUsage.ANY)
        tensor.offset = 0

    def reduce() -> None:
        group = WorkerPair(first, second, free_port(), HANG_S)
        group.all_reduce(*pair)
        group.close()

    def push() -> None:
        first.push(pair[0], second, pair[1])
        second.synchronize()

    has_pairs = min(d.connection.version.major for d in (first, second)) >= _HAS_PAIRS
    return [reduce, push, push] if has_pairs else [push]


def _weight(tensor: Tensor, hash_: int) -> Weight:
    data = memoryview(fill(tensor))
    return Weight(tensor, data, lambda: hash_, lambda start, end, had: None)
