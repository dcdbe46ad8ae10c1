"""llama-rpc-server ends when it is told to, whatever its clients are about."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from app.ggml.builder import GraphBuilder
from app.ggml.tensor import new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire import messages as m
from app.rpc_backend.wire.client_core import ClientCore
from app.rpc_backend.wire.graph_codec import GraphCompute, describe_graph
from app.rpc_backend.wire.tensor import Place, to_wire
from app.rpc_backend.worker.server import bind
from tests.helpers.assets import PROJECT_ROOT
from tests.helpers.eventually import eventually
from tests.helpers.process import free_port, own_worker
from tests.helpers.rpc_link import received

SIGNALS: Final = [signal.SIGTERM, signal.SIGINT]
LIMIT_S: Final = 60
SIDE: Final = 2048
UPLOAD: Final = 1 << 20


class Client:
    """Frames by hand: what it asks for it need not wait for."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._core = sock, ClientCore()
        sock.settimeout(LIMIT_S)
        sock.sendall(self._core.hello())
        self._reply()
        self.ask(x.Extend(x.REVISION, bytes(32)))
        self._core.extend()

    def tell(self, message: m.Message, data: bytes = b"", missing: int = 0) -> None:
        """Send a request and of its data all but `missing` bytes."""
        frame, _ = self._core.request(message, len(data))
        self._sock.sendall(frame + data[: len(data) - missing])

    def ask(self, message: m.Message) -> m.Message | bytearray:
        """Send a request and return its reply."""
        self.tell(message)
        return self._reply()

    def alloc(self, size: int) -> Place:
        """Make a buffer."""
        reply = self.ask(m.AllocBuffer(0, size))
        assert isinstance(reply, m.AllocBufferReply) and reply.buffer
        base = self.ask(m.BufferGetBase(reply.buffer))
        assert isinstance(base, m.SizeReply)
        return Place(reply.buffer, base.value)

    def _reply(self) -> m.Message | bytearray:
        while True:
            if replies := received(self._core, self._sock.recv(1 << 16)):
                return replies[0].body


@contextmanager
def client_of(port: int) -> Iterator[Client]:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        yield Client(sock)


def endless(place: Place) -> GraphCompute:
    """A graph that takes minutes: the same product again and again, into one place."""
    b = GraphBuilder()
    given = b.input(GGMLType.F32, (SIDE, SIDE), "x")
    graph = b.finish(*(b.mul_mat(given, given) for _ in range(2000)))
    behind = Place(place.handle, place.address + given.nbytes)
    return describe_graph(graph, 0, lambda tensor: place if tensor is given else behind)


def keep_busy(client: Client) -> None:
    """A graph that runs, two that wait, and another buffer of which the half has come."""
    room, other = client.alloc(2 * 4 * SIDE * SIDE), client.alloc(UPLOAD)
    graph = endless(room)
    for _ in range(3):
        client.tell(graph)
    weight = to_wire(new_tensor(GGMLType.I8, (UPLOAD,), "w"), other)
    client.tell(m.SetTensor(weight, 1, 0), bytes(UPLOAD), missing=UPLOAD // 2)


def push_nowhere(client: Client, port: int) -> None:
    """A push to somebody who takes the connection and says nothing."""
    source = to_wire(new_tensor(GGMLType.I8, (4096,), "pushed"), client.alloc(4096))
    host = b"127.0.0.1".ljust(x.HOST_BYTES, b"\0")
    client.tell(x.PushTensor(source, 0, 4096, 1, port, host, bytes(16)))


@pytest.mark.parametrize("number", SIGNALS)
def test_it_ends_in_the_middle_of_everything_and_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        worker, port = stack.enter_context(own_worker("-c", str(tmp_path)))
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        stack.enter_context(client_of(port))
        silent = stack.enter_context(socket.create_server(("127.0.0.1", free_port())))
        push_nowhere(stack.enter_context(client_of(port)), silent.getsockname()[1])
        keep_busy(stack.enter_context(client_of(port)))
        eventually(lambda: list(tmp_path.glob(".*.part")))
        stack.enter_context(silent.accept()[0])
        worker.process.send_signal(number)
        assert worker.process.wait(LIMIT_S) == 0
        assert "still computing, left behind" in worker.output
        assert f"stopping on {number.name}" in worker.output
        assert "Traceback" not in worker.output
        bind("127.0.0.1", port).close()
    assert list(tmp_path.iterdir()) == []


# A signal that comes just before signal.pause() would be waited for; one in the middle of a print
# must not print.
STOPS_NEVER: Final = """
import os, time
from app.cli.rpc_server import _stop_on_signals

class Server:
    def stop(self):
        os.write(1, b"stopping\\n")

_stop_on_signals(Server())
os.write(1, b"ready\\n")
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_a_second_signal_ends_it_at_once(first: signal.Signals, second: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPS_NEVER], stdout=subprocess.PIPE, cwd=PROJECT_ROOT
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(first)
            assert process.stdout.readline() == b"stopping\n"
            process.send_signal(second)
            assert process.wait(LIMIT_S) == -second
        finally:
            process.kill()


STARTS_FOR_EVER: Final = """
import sys, time
from app.cli import rpc_server

def never(options):
    print("starting", flush=True)
    while True:
        time.sleep(0.05)

rpc_server._open_devices = never
sys.exit(rpc_server.main(["-p", sys.argv[1]]))
"""


def test_an_interrupt_while_it_starts_is_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_FOR_EVER, str(free_port())],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=PROJECT_ROOT,
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == b"starting\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT_S) == 128 + signal.SIGINT
            assert process.stderr.read() == b""
        finally:
            process.kill()
