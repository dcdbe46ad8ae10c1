"""Hostile clients against a real llama-rpc-server process, over sockets.

One round is one connection that sends requests and graphs, whole and damaged, and goes: by closing,
by a reset, in the middle of a frame, with or without reading its answers. Some stay open for a
while beside the next ones. The process must live, its memory, threads and descriptors come back,
and another client's answers stay the same to the bit.
"""

import os
import signal
import socket
import struct
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from unittest import mock

from app.errors import GraphError, LlamaServeError
from app.ggml.tensor import Tensor
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.commands import command_of
from app.rpc_backend.wire.framing import REQUEST_HEADER
from app.rpc_backend.wire.graph_codec import describe_graph
from app.rpc_backend.wire.tensor import Place
from tests.fuzz.caller import Room
from tests.fuzz.canary import Witness
from tests.fuzz.census import Census
from tests.fuzz.damage import damaged_graph
from tests.fuzz.dice import Dice
from tests.fuzz.graphs import draft
from tests.fuzz.talk import request
from tests.helpers.eventually import eventually
from tests.helpers.fake_worker import read
from tests.helpers.process import own_worker

CHECK_EVERY: Final = 20
MOST_OPEN: Final = 6
BUFFER_BYTES: Final = 1 << 16
TIMEOUT_S: Final = 20.0


class ServerTarget:
    """The process, a well-behaved client of it, and hostile connections that are still open."""

    def __init__(self, pid: int, port: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.census = Census()
        self._pid = pid
        self._port = port
        self._open: deque[socket.socket] = deque()
        self._witness = Witness(port)
        # The witness's lane may get its thread later.
        self._n_idle = self._n_held() + 1

    def round(self, seed: int) -> None:
        """Be one hostile client.

        Raises: AssertionError.
        """
        dice = Dice(seed)
        try:
            self._visit(dice)
        except OSError as error:
            self.outcomes[f"cut off: {type(error).__name__}"] += 1
        while len(self._open) > MOST_OPEN:
            self._open.popleft().close()
        if seed % CHECK_EVERY == 0:
            self._look()

    def check(self) -> None:
        """Let everybody go; the process must be as it was at first."""
        while self._open:
            self._open.popleft().close()
        self._look()
        eventually(lambda: self._n_held() <= self._n_idle, TIMEOUT_S)

    def n_bytes(self) -> int:
        """Private memory of the worker's process."""
        for line in Path(f"/proc/{self._pid}/status").read_text("ascii").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
        return 0

    def close(self) -> None:
        """Leave."""
        self._witness.close()

    def _look(self) -> None:
        os.kill(self._pid, 0)
        self._witness.check()

    def _n_held(self) -> int:
        """Threads and descriptors of the process."""
        here = Path(f"/proc/{self._pid}")
        return len(list((here / "task").iterdir())) + len(list((here / "fd").iterdir()))

    def _visit(self, dice: Dice) -> None:
        sock = socket.create_connection(("127.0.0.1", self._port), timeout=TIMEOUT_S)
        self._open.append(sock)
        if dice.chance(0.05):
            sock.sendall(dice.randbytes(dice.randrange(1, 2000)))
            return
        sock.sendall(_frame(m.Hello()))
        read(sock, 36)
        extended = dice.chance(0.5)
        if extended:
            sock.sendall(_frame(x.Extend(x.REVISION, bytes(x.NONCE_BYTES))))
            read(sock, 8 + 1 + x.NONCE_BYTES + x.PROOF_BYTES)
        rooms = [_take(sock, size) for size in dice.sample((64, 4096, BUFFER_BYTES), 2)]
        for _ in range(dice.randint(1, 10)):
            data = _graph_frame(dice, rooms) if dice.chance(0.4) else request(dice, 8, rooms)
            sock.sendall(data[: dice.randrange(len(data))] if dice.chance(0.03) else data)
            self.outcomes["requests"] += 1
        self._leave(dice, sock)

    def _leave(self, dice: Dice, sock: socket.socket) -> None:
        way = dice.choice(("stay", "read", "close", "reset", "half"))
        self.outcomes[f"left: {way}"] += 1
        if way == "read":
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass
        elif way == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif way == "half":
            sock.shutdown(socket.SHUT_RD)
        if way in ("close", "reset", "read"):
            self._open.remove(sock)
            sock.close()


def _frame(message: m.Message) -> bytes:
    command = command_of(message)
    body = command.request.pack(message)
    return REQUEST_HEADER.pack(command.number, len(body)) + body


def _take(sock: socket.socket, size: int) -> Room:
    sock.sendall(_frame(m.AllocBuffer(0, size)))
    handle, _ = struct.unpack("<QQ", read(sock, 24)[8:])
    sock.sendall(_frame(m.BufferGetBase(handle)))
    (base,) = struct.unpack("<Q", read(sock, 16)[8:])
    return Room(Place(handle, base), size)


def _graph_frame(dice: Dice, rooms: list[Room]) -> bytes:
    made = draft(dice, dice.choice((1, 2)))
    room = next((r for r in rooms if r.size >= made.size), rooms[0])
    handle, base = room.place

    def place(tensor: Tensor) -> Place:
        return Place(handle, base + made.offsets[id(tensor)])

    message = describe_graph(made.graph, 0, place)
    with suppress(GraphError, LlamaServeError):
        return _frame(damaged_graph(dice, message) if dice.chance(0.6) else message)
    return _frame(message)


@contextmanager
def serving(executor: str, level: str | None, threads: int) -> Iterator[ServerTarget]:
    """Run the process; it must end by itself when it is asked to."""
    chosen = "reference" if executor == "reference" else level
    environment = {} if chosen is None else {"LLAMA_SERVE_CPU_LEVEL": chosen}
    with mock.patch.dict(os.environ, environment), own_worker("-t", str(threads)) as (worker, port):
        target = ServerTarget(worker.process.pid, port)
        yield target
        target.close()
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(TIMEOUT_S) == 0, worker.output[-2000:]
