"""Hostile clients against real llama-rpc-server processes, over sockets: one that serves everybody,
and one with TLS and a secret.

One round is one connection that sends requests and graphs, whole and damaged, and goes: by closing,
by a reset, in the middle of a frame, with or without reading its answers. Some stay open for a
while beside the next ones. The processes must live, their memory, threads, descriptors and files
come back, and another client's answers stay the same to the bit.
"""

import os
import socket
import struct
import tempfile
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final
from unittest import mock

from app.errors import GraphError, LlamaServeError
from app.ggml.tensor import Tensor
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.streams.settings import ClientTls
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.extensions import proof_key
from app.rpc_backend.wire.graph_codec import describe_graph
from app.rpc_backend.wire.tensor import Place
from tests.fuzz.caller import Room
from tests.fuzz.canary import Witness
from tests.fuzz.census import Census
from tests.fuzz.damage import damaged_graph
from tests.fuzz.dice import Dice
from tests.fuzz.graphs import draft
from tests.fuzz.line import TIMEOUT_S, Line, frame, wild_handshake
from tests.fuzz.talk import request
from tests.helpers.certificates import Certificates
from tests.helpers.eventually import eventually
from tests.helpers.process import Running, free_port, own_worker

CHECK_EVERY: Final = 20
MOST_OPEN: Final = 6
BUFFER_BYTES: Final = 1 << 16
SECRET: Final = b"known to some, not to all"
_SMALLEST_KEPT: Final = "64"


class Host:
    """One process, and a well-behaved client of it."""

    def __init__(self, worker: Running, port: int, secret: bytes | None) -> None:
        self.port = port
        self.secret = secret
        self._pid = worker.process.pid
        tls = None if secret is None else ClientTls()
        self._witness = Witness(port, ClientSettings(secret=secret, tls=tls))
        # The witness's lane may get its thread later.
        self._n_idle = self._n_held() + 1

    def look(self) -> None:
        """It must live and give the same answer."""
        os.kill(self._pid, 0)
        self._witness.check()

    def check_idle(self) -> None:
        """Everybody has left; it must be as it was at first."""
        self.look()
        eventually(lambda: self._n_held() <= self._n_idle, TIMEOUT_S)

    def n_bytes(self) -> int:
        """Private memory."""
        for line in Path(f"/proc/{self._pid}/status").read_text("ascii").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
        return 0

    def close(self) -> None:
        """Leave."""
        self._witness.close()

    def _n_held(self) -> int:
        """Threads and descriptors of the process."""
        here = Path(f"/proc/{self._pid}")
        return len(list((here / "task").iterdir())) + len(list((here / "fd").iterdir()))


class ServerTarget:
    """The processes and hostile connections that are still open; `cache` is where both keep
    weights.
    """

    def __init__(self, hosts: list[Host], cache: Path) -> None:
        self.outcomes: Counter[str] = Counter()
        self.census = Census()
        self._hosts = hosts
        self._cache = cache
        self._open: deque[Line] = deque()

    def round(self, seed: int) -> None:
        """Be one hostile client.

        Raises: AssertionError.
        """
        dice = Dice(seed)
        host = self._hosts[dice.chance(0.3)]
        try:
            self._visit(dice, host)
        except OSError as error:
            self.outcomes[f"cut off: {type(error).__name__}"] += 1
        while len(self._open) > MOST_OPEN:
            self._open.popleft().close()
        if seed % CHECK_EVERY == 0:
            for one in self._hosts:
                one.look()

    def check(self) -> None:
        """Let everybody go; everything must be as it was at first."""
        while self._open:
            self._open.popleft().close()
        for host in self._hosts:
            host.check_idle()
        eventually(lambda: not list(self._cache.glob(".*.part")), TIMEOUT_S)

    def n_bytes(self) -> int:
        """Private memory of the processes."""
        return sum(host.n_bytes() for host in self._hosts)

    def _visit(self, dice: Dice, host: Host) -> None:
        line = Line(host.port)
        self._open.append(line)
        if dice.chance(0.05):
            line.sendall(dice.randbytes(dice.randrange(1, 2000)))
            return
        if dice.chance(0.02 if host.secret is None else 0.2):
            line.sendall(wild_handshake(dice))
            self.outcomes["wild handshakes"] += 1
            return
        if host.secret is not None and dice.chance(0.95):
            line.secure()
        line.hello()
        if host.secret is not None or dice.chance(0.5):
            line.extend(dice, host.secret)
        rooms = [line.take(size) for size in dice.sample((64, 4096, BUFFER_BYTES), 2)]
        for _ in range(dice.randint(1, 10)):
            data = self._request(dice, line, host, rooms)
            if host.secret is not None and dice.chance(0.02):
                line.sock.sendall(dice.randbytes(dice.randrange(1, 300)))
            line.sendall(data[: dice.randrange(len(data) + 1)] if dice.chance(0.03) else data)
            self.outcomes["requests"] += 1
        self._leave(dice, line)

    def _request(self, dice: Dice, line: Line, host: Host, rooms: list[Room]) -> bytes:
        kind = dice.random()
        if kind < 0.4:
            return _graph_frame(dice, rooms)
        if kind < 0.5:
            return _post_frames(dice, line, host, dice.choice(rooms))
        if kind < 0.52:
            self.outcomes["pairs"] += 1
            return _pair_frames(dice, dice.choice(rooms))
        return request(dice, 8, rooms)

    def _leave(self, dice: Dice, line: Line) -> None:
        way = dice.choice(("stay", "read", "close", "reset", "half"))
        self.outcomes[f"left: {way}"] += 1
        if way == "read":
            line.drain()
        elif way == "reset":
            line.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif way == "half":
            line.sock.shutdown(socket.SHUT_RD)
        if way in ("close", "reset", "read"):
            self._open.remove(line)
            line.close()


def _graph_frame(dice: Dice, rooms: list[Room]) -> bytes:
    made = draft(dice, dice.choice((1, 2)))
    room = next((r for r in rooms if r.size >= made.size), rooms[0])
    handle, base = room.place

    def place(tensor: Tensor) -> Place:
        return Place(handle, base + made.offsets[id(tensor)])

    message = describe_graph(made.graph, 0, place)
    with suppress(GraphError, LlamaServeError):
        return frame(damaged_graph(dice, message) if dice.chance(0.6) else message)
    return frame(message)


def _post_frames(dice: Dice, line: Line, host: Host, room: Room) -> bytes:
    """Push a tensor to the worker itself, to nobody, or leave it at the door; and take it."""
    number, size = dice.u64(), dice.randrange(room.size + 1)
    port = host.port if dice.chance(0.7) else dice.choice((1, free_port(), 65535))
    address = b"127.0.0.1".ljust(x.HOST_BYTES, b"\0")
    ways = (
        frame(x.PushTensor(room.whole, 0, size, number, port, address, line.key)),
        frame(x.Deliver(line.key, number), dice.randbytes(size)),
    )
    taken = number if dice.chance(0.9) else dice.u64()
    return dice.choice(ways) + frame(x.TakeDelivery(room.whole, 0, size, taken))


def _pair_frames(dice: Dice, room: Room) -> bytes:
    """Make the worker wait for another one, which never comes."""
    address = b"127.0.0.1".ljust(x.HOST_BYTES, b"\0")
    init = m.CommInit(0, dice.choice((0, 1)), 2, free_port(), address)
    return frame(init) + frame(m.CommAllreduce(0, room.whole))


@contextmanager
def serving(executor: str, level: str | None, threads: int) -> Iterator[ServerTarget]:
    """Run the processes; each must end by itself when it is asked to."""
    chosen = "reference" if executor == "reference" else level
    environment = {"GGML_RPC_CACHE_MIN_SIZE": _SMALLEST_KEPT}
    environment |= {} if chosen is None else {"LLAMA_SERVE_CPU_LEVEL": chosen}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(mock.patch.dict(os.environ, environment))
        made = Certificates(folder).signed("127.0.0.1")
        (folder / "secret").write_bytes(SECRET)
        (folder / "secret").chmod(0o600)
        common = ("-t", str(threads), "-c", str(folder / "cache"))
        closed = ("--tls-cert", str(made.cert_file), "--tls-key", str(made.key_file))
        flags = (common, (*common, *closed, "--secret-file", str(folder / "secret")))
        workers = [stack.enter_context(own_worker(*some)) for some in flags]
        secrets = (None, proof_key(SECRET))
        hosts = [Host(*worker, secret) for worker, secret in zip(workers, secrets, strict=True)]
        yield ServerTarget(hosts, folder / "cache")
        for host, (worker, _) in zip(hosts, workers, strict=True):
            host.close()
            assert worker.terminate(TIMEOUT_S) == 0, worker.output[-2000:]
