"""The client against a worker that lies: whatever comes back ends in a result or a typed error.

The worker is a real session whose answers are damaged on their way: bytes and size fields changed,
pieces left out, sent twice or late, error frames that nobody asked for, the connection closed. One
round is one connection, from HELLO on, with a few calls of every kind.
"""

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from app.devices.base import BufferUsage
from app.devices.host_memory import touched_bytes
from app.devices.null import NullDevice
from app.errors import LlamaServeError
from app.ggml.graph import Graph
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.client.transport import TransportLimits
from app.rpc_backend.wire.extensions import ErrorReply, pack_error
from app.rpc_backend.worker.session import Session, SessionError
from tests.fuzz.canary import fill, lay_out, sample_graph
from tests.fuzz.census import Census
from tests.fuzz.dice import Dice

STALL_S: Final = 0.15
HANG_S: Final = 10.0
SETTINGS: Final = ClientSettings(
    connect_timeout_s=STALL_S,
    limits=TransportLimits(
        request_timeout_s=STALL_S, ping_after_s=STALL_S / 2, ping_timeout_s=STALL_S
    ),
    hash_threshold_bytes=256,
)
# How often an answer is changed. Without a change now and then no round would come far.
_DAMAGE: Final = (0.0, 0.02, 0.1, 0.5)

_SIZE: Final = struct.Struct("<Q")


@dataclass(slots=True)
class ReplyTarget:
    """Counts how rounds ended."""

    outcomes: Counter[str] = field(default_factory=Counter)
    census: Census = field(default_factory=Census)

    def round(self, seed: int) -> None:
        """Be the client of one lying worker.

        Raises: AssertionError when a call hangs or ends in anything but a typed error.
        """
        dice = Dice(seed)
        self.check()
        with _liar(Dice(seed + 1), dice.choice((7, 8))) as endpoint:
            try:
                (device, *others) = open_workers([endpoint], SETTINGS)
            except LlamaServeError as error:
                self.outcomes[f"not opened: {type(error).__name__}"] += 1
                return
            try:
                self._use(dice, device)
                self.outcomes["all answered"] += 1
            except LlamaServeError as error:
                self.outcomes[type(error).__name__] += 1
            except FutureTimeoutError:
                raise AssertionError(f"a reply was still awaited after {HANG_S} s") from None
            finally:
                for one in (device, *others):
                    with suppress(LlamaServeError):
                        one.close()

    def check(self) -> None:
        """Every round has ended its threads."""
        left = [t.name for t in threading.enumerate() if t.name.startswith("rpc-")]
        assert not left, f"threads are left: {left}"

    def n_bytes(self) -> int:
        """Memory of the client."""
        return touched_bytes()

    def _use(self, dice: Dice, device: RpcDevice) -> None:
        graph = sample_graph()
        offsets, size = lay_out(graph)
        buffer = device.alloc(size, dice.choice((BufferUsage.ANY, BufferUsage.WEIGHTS)))
        for tensor in graph.tensors():
            tensor.buffer, tensor.offset = buffer, offsets[id(tensor)]
        calls = _calls(dice, device, graph)
        for _ in range(dice.randint(1, 12)):
            try:
                dice.choice(calls)()
                self.outcomes["calls answered"] += 1
            except LlamaServeError:
                self.outcomes["calls failed"] += 1
        device.synchronize()


def _calls(dice: Dice, device: RpcDevice, graph: Graph) -> list[Callable[[], object]]:
    tensors = [t for t in graph.tensors() if t.view_src is None]
    odd = new_tensor(GGMLType.Q4_0, (32, 3), "odd")

    def any_tensor() -> Tensor:
        return dice.choice(tensors)

    def read() -> None:
        tensor = any_tensor()
        data = device.get_tensor(tensor, 0, tensor.nbytes).result(HANG_S)
        assert len(data) == tensor.nbytes, "a read of another length"

    def write() -> None:
        leaf = dice.choice(graph.leaves())
        device.set_tensor(leaf, fill(leaf))

    def copy() -> None:
        device.copy_tensor(tensors[0], tensors[0])

    def take() -> None:
        device.free(device.alloc(dice.choice((0, 64, 1 << 20)), BufferUsage.ANY))

    return [
        read,
        read,
        write,
        copy,
        take,
        device.memory,
        device.synchronize,
        lambda: device.alloc_size(odd),
        lambda: device.compute(graph),
        lambda: device.compute(graph),
        lambda: device.memset_tensor(any_tensor(), 1, 0, 1),
        lambda: device.unsupported(graph.nodes),
    ]


@contextmanager
def _liar(dice: Dice, version: int) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(HANG_S)
    end = threading.Event()
    thread = threading.Thread(target=_lie, args=(listener, dice, version, end), name="liar")
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        end.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _lie(listener: socket.socket, dice: Dice, version: int, end: threading.Event) -> None:
    with suppress(OSError):
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(HANG_S)
            session = Session([NullDevice(total=1 << 24)], version)
            try:
                _serve(sock, session, dice, end)
            finally:
                session.close()


def _serve(sock: socket.socket, session: Session, dice: Dice, end: threading.Event) -> None:
    damage, held = dice.choice(_DAMAGE), b""
    while n := sock.recv_into(session.writable()):
        try:
            answers = [bytes(piece) for piece in session.wrote(n)]
        except SessionError:
            return
        for answer in answers:
            pieces, held = _distorted(dice, damage, answer, held)
            for piece in pieces:
                if piece is None:
                    return
                if piece == b"":
                    end.wait(dice.choice((0.01, 2 * STALL_S)))
                sock.sendall(piece)


def _distorted(
    dice: Dice, damage: float, answer: bytes, held: bytes
) -> tuple[list[bytes | None], bytes]:
    """Return what is sent for an answer (None closes, nothing waits), and what comes later."""
    if not dice.chance(damage):
        return [held + answer], b""
    at = dice.randrange(len(answer) + 1)
    error = pack_error(ErrorReply(dice.u64(), dice.randrange(256), "é" * dice.randrange(3000)))
    size = _SIZE.pack(dice.choice((dice.u64(), 2**63 | dice.randrange(8192))))
    slow: list[bytes | None] = [bytes([byte]) for byte in answer[:500]]
    slow.append(answer[500:] or b"\0")
    ways: list[tuple[list[bytes | None], bytes]] = [
        ([dice.damaged(answer)], b""),
        ([size + answer[8:]], b""),
        ([answer[:at]], b""),
        ([answer[:at], None], b""),
        ([None], b""),
        ([answer, answer], b""),
        ([answer[:at], b"", answer[at:]], b""),
        (slow, b""),
        ([dice.randbytes(dice.randrange(300)), answer], b""),
        ([error, answer], b""),
        ([error], b""),
        ([], answer),
        ([b""], b""),
    ]
    pieces, later = dice.choice(ways)
    return [held, *pieces] if held else pieces, later
