"""Failures that a worker of our own tells of: who gets them, and what goes on regardless."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from app.errors import DeviceLostError, GraphError, LlamaServeError, OutOfMemoryError
from app.rpc_backend.client.connection import ClientSettings, WorkerConnection
from app.rpc_backend.client.endpoint import parse_endpoint
from app.rpc_backend.client.pulse import TransportLimits
from app.rpc_backend.wire import extensions as x
from app.rpc_backend.wire import messages as m
from tests.helpers.eventually import eventually
from tests.helpers.fake_worker import fake_worker, read, wait_for_end
from tests.helpers.rpc_frames import HELLO, frame, response, u64

EXTENDED = response(bytes([8, 0, 0, x.Announced.EXTENDED]) + bytes(24))
PING, FACTS, FREE = 9 + 8, 9 + 4, 9 + 8
"""Bytes of the requests that the tests use: two with a reply, one without."""


@contextmanager
def connected(
    script: Callable[[socket.socket], None], limits: TransportLimits | None = None
) -> Iterator[WorkerConnection]:
    """A connection to a worker of our own kind that follows a script after the greeting."""

    def run(sock: socket.socket) -> None:
        read(sock, len(HELLO))
        sock.sendall(EXTENDED)
        read(sock, 9 + 33)
        sock.sendall(response(b"\x01" + bytes(32)))
        script(sock)

    with fake_worker(run) as endpoint:
        settings = ClientSettings(limits=limits or TransportLimits())
        connection = WorkerConnection(parse_endpoint(endpoint), settings)
        try:
            yield connection
        finally:
            connection.close()


def failed(request: int, code: int = x.ErrorCode.GRAPH, text: str = "FREE_BUFFER: no") -> bytes:
    return x.pack_error(x.ErrorReply(request, code, text))


def asked(connection: WorkerConnection) -> "Future[bytes]":
    """Ask for something that is no sign of life."""
    return connection.ask_bytes(x.DeviceFacts(0))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (x.ErrorCode.GRAPH, GraphError),
        (x.ErrorCode.MEMORY, OutOfMemoryError),
        (x.ErrorCode.PROTOCOL, DeviceLostError),
        (99, DeviceLostError),
    ],
)
def test_a_request_that_fails_raises_what_a_local_device_would(
    code: int, kind: type[LlamaServeError]
) -> None:
    def script(sock: socket.socket) -> None:
        read(sock, PING)
        sock.sendall(failed(0, code, "PING: out of order"))
        read(sock, PING)
        sock.sendall(response(u64(0)))
        wait_for_end(sock)

    with connected(script) as connection:
        with pytest.raises(kind, match=f"RPC worker {connection.endpoint}: PING: out of order"):
            connection.ping(60)
        connection.ping(60)


def test_everything_under_way_behind_a_failure_fails_with_it() -> None:
    def script(sock: socket.socket) -> None:
        read(sock, FACTS + FREE + 2 * FACTS)
        sock.sendall(response(b"before"))
        sock.sendall(failed(1))
        sock.sendall(response(b"behind") * 2)
        read(sock, FACTS)
        sock.sendall(response(b"later"))
        wait_for_end(sock)

    with connected(script) as connection:
        before = asked(connection)
        connection.tell(m.FreeBuffer(1), flush=False)
        behind = [asked(connection), asked(connection)]
        assert before.result(60) == b"before"
        for future in behind:
            with pytest.raises(GraphError, match="FREE_BUFFER: no"):
                future.result(60)
        assert asked(connection).result(60) == b"later"


def test_a_failure_ends_with_those_under_way_also_when_one_of_them_fails_by_itself() -> None:
    def script(sock: socket.socket) -> None:
        read(sock, FREE + 2 * FACTS)
        sock.sendall(failed(0) + failed(1, text="DEVICE_FACTS: no") + response(b"behind"))
        read(sock, FACTS)
        sock.sendall(response(b"later"))
        wait_for_end(sock)

    with connected(script) as connection:
        connection.tell(m.FreeBuffer(1), flush=False)
        own, behind = asked(connection), asked(connection)
        with pytest.raises(GraphError, match="DEVICE_FACTS: no"):
            own.result(60)
        with pytest.raises(GraphError, match="FREE_BUFFER: no"):
            behind.result(60)
        assert asked(connection).result(60) == b"later"


def test_what_has_to_be_said_is_said_in_spite_of_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    freed: list[bytes] = []

    def script(sock: socket.socket) -> None:
        read(sock, FREE)
        sock.sendall(failed(0))
        freed.append(read(sock, FREE))
        wait_for_end(sock)

    with connected(script) as connection:
        connection.tell(m.FreeBuffer(1))
        eventually(lambda: "FREE_BUFFER: no" in caplog.text)
        connection.tell(m.FreeBuffer(2), regardless=True)
        eventually(lambda: freed == [frame(4, u64(2))])
        with pytest.raises(GraphError, match="FREE_BUFFER: no"):
            asked(connection)


def test_a_failure_that_nobody_waits_behind_meets_the_next_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def script(sock: socket.socket) -> None:
        read(sock, FREE)
        sock.sendall(failed(0))
        read(sock, FACTS)
        sock.sendall(response(b"y"))
        wait_for_end(sock)

    with connected(script) as connection:
        connection.tell(m.FreeBuffer(1))
        eventually(lambda: "FREE_BUFFER: no" in caplog.text)
        with pytest.raises(GraphError, match="FREE_BUFFER: no"):
            connection.tell(m.FreeBuffer(2))
        assert asked(connection).result(60) == b"y"


def test_after_a_failure_no_graph_counts_as_kept() -> None:
    def script(sock: socket.socket) -> None:
        read(sock, PING)
        sock.sendall(failed(0))
        wait_for_end(sock)

    with connected(script) as connection:
        connection.kept.sent(0, 7)
        assert connection.kept.has(0, 7)
        with pytest.raises(GraphError):
            connection.ping(60)
        assert not connection.kept.has(0, 7)


def test_a_worker_that_closes_after_a_failure_is_quoted() -> None:
    def script(sock: socket.socket) -> None:
        read(sock, FREE)
        sock.sendall(failed(0, x.ErrorCode.INTERNAL, "FREE_BUFFER: a bug"))

    with connected(script) as connection:
        connection.tell(m.FreeBuffer(1))
        eventually(lambda: connection.cause is not None)
        with pytest.raises(DeviceLostError, match=r"closed .* after a failure .*a bug"):
            connection.ping(60)


def test_an_idle_worker_is_asked_for_a_sign_of_life() -> None:
    pings = []

    def script(sock: socket.socket) -> None:
        for _ in range(3):
            pings.append(read(sock, PING))
            sock.sendall(response(u64(0)))
        wait_for_end(sock)

    limits = TransportLimits(ping_after_s=0.05, ping_timeout_s=20)
    with connected(script, limits) as connection:
        eventually(lambda: len(pings) == 3)
        assert connection.cause is None


def test_a_worker_that_has_not_read_all_yet_may_take_its_time_for_a_sign_of_life() -> None:
    """It reads nothing while what it read last waits for a graph."""
    pings = []

    def script(sock: socket.socket) -> None:
        read(sock, FREE + PING)
        threading.Event().wait(0.6)
        pings.append(response(u64(0)))
        sock.sendall(pings[0])
        wait_for_end(sock)

    limits = TransportLimits(30, ping_after_s=0.05, ping_timeout_s=0.2)
    with connected(script, limits) as connection:
        connection.tell(m.FreeBuffer(1))
        eventually(lambda: len(pings) == 1)
        assert connection.cause is None


def test_an_idle_worker_that_gives_none_is_lost() -> None:
    limits = TransportLimits(ping_after_s=0.05, ping_timeout_s=0.2)
    with connected(wait_for_end, limits) as connection:
        eventually(lambda: connection.cause is not None)
        with pytest.raises(DeviceLostError, match=r"does not answer, for 0\.2 s"):
            connection.tell(m.FreeBuffer(1))
