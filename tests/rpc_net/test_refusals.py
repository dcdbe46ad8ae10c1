"""Lines about strangers do not fill a disk, and none is lost without a word."""

import errno
import logging
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_network
from typing import Final

import pytest

from app.devices.null import NullDevice
from app.rpc_backend.wire.constants import Cmd
from app.rpc_backend.worker import refusals as refusals_module
from app.rpc_backend.worker import server as server_module
from app.rpc_backend.worker.refusals import MOST_LINES, PERIOD_S, Refusals
from app.rpc_backend.worker.server import ServerSettings
from tests.helpers.eventually import eventually
from tests.helpers.fake_worker import read
from tests.helpers.rpc_frames import HELLO, frame
from tests.helpers.rpc_link import serving

MOST: Final = 3
N: Final = 10
SECRET: Final = b"a secret of the house"
TLS_HELLO: Final = b"\x16\x03\x01\x00\x05hello"


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """What the clock says."""
        return self.now


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def n_told(lines: list[str]) -> int:
    """How many connections lines tell of, one by one or in sum."""
    sums = [int(found[1]) for line in lines if (found := re.match(r"(\d+) more", line))]
    return len(lines) - len(sums) + sum(sums)


def test_the_first_of_a_period_have_lines_and_the_rest_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    refusals = Refusals(clock)
    for i in range(MOST_LINES + 1000):
        refusals.tell(logging.WARNING, "%d: refused", i)
    assert warnings(caplog) == [f"{i}: refused" for i in range(MOST_LINES)]
    clock.now = PERIOD_S
    refusals.sum_up()
    assert warnings(caplog)[MOST_LINES:] == [
        f"1000 more connections within {PERIOD_S:.0f} s that were not served"
    ]
    clock.now = 2 * PERIOD_S
    refusals.sum_up()
    refusals.tell(logging.WARNING, "again")
    assert warnings(caplog)[MOST_LINES + 1 :] == ["again"]


def test_a_period_that_nobody_ended_is_summed_up_before_the_next_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    refusals = Refusals(clock)
    for _ in range(MOST_LINES + 1):
        refusals.tell(logging.INFO, "refused")
    clock.now = 3 * PERIOD_S
    refusals.tell(logging.WARNING, "next")
    refusals.sum_up(early=True)
    assert warnings(caplog) == ["1 more connections within 180 s that were not served", "next"]


STRANGERS: Final[dict[str, tuple[ServerSettings, bytes]]] = {
    "a scanner": (ServerSettings(), b"GET / HTTP/1.1\r\n\r\n"),
    "not in --allow": (ServerSettings(allowed=(ip_network("192.0.2.1"),)), b""),
    "TLS where there is none": (ServerSettings(), TLS_HELLO),
    "too many": (ServerSettings(max_clients=0), b""),
    "no secret": (ServerSettings(secret=SECRET), HELLO + frame(Cmd.DEVICE_COUNT)),
    "no more than HELLO": (ServerSettings(secret=SECRET), HELLO),
    "half a HELLO": (ServerSettings(), HELLO[:5]),
    "offers of RDMA": (ServerSettings(secret=SECRET), frame(14, b"\1" * 24) + frame(0)),
}


@pytest.mark.parametrize(("settings", "said"), STRANGERS.values(), ids=STRANGERS)
def test_strangers_leave_few_lines_and_all_are_counted(
    settings: ServerSettings,
    said: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(refusals_module, "MOST_LINES", MOST)
    caplog.set_level(logging.INFO)
    with serving([NullDevice()], settings) as server:
        for _ in range(N):
            # It may be closed at the other end at any time.
            address = ("127.0.0.1", server.port)
            with suppress(OSError), socket.create_connection(address, timeout=60) as sock:
                sock.sendall(said)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1000):
                    pass
        eventually(lambda: server.n_clients == 0)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == MOST + 1
    assert n_told(lines) == N


def test_clients_that_are_served_have_a_line_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(refusals_module, "MOST_LINES", MOST)
    caplog.set_level(logging.INFO)
    with serving([NullDevice()]) as server:
        for _ in range(N):
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
                sock.sendall(HELLO + frame(Cmd.DEVICE_COUNT))
                read(sock, 36 + 12)
        eventually(lambda: server.n_clients == 0)
    assert sum("closed by the client" in record.getMessage() for record in caplog.records) == N


@pytest.mark.parametrize(
    ("code", "is_cut_off"),
    [(errno.EMFILE, True), (errno.ENOMEM, True), (errno.ECONNABORTED, False)],
)
def test_a_stranger_that_leaves_while_it_is_accepted_costs_no_client_its_place(
    code: int, is_cut_off: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "_ACCEPT_PAUSE_S", 0)
    accept: Callable[[socket.socket], object] = socket.socket.accept
    failures = [OSError(code, "refused by the system")]

    def failing(sock: socket.socket) -> object:
        if failures and sock.getsockname()[1] == port:
            raise failures.pop()
        return accept(sock)

    with serving([NullDevice()]) as server:
        port = server.port
        with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
            sock.sendall(HELLO)
            read(sock, 36)
            monkeypatch.setattr(socket.socket, "accept", failing)
            socket.create_connection(("127.0.0.1", port), timeout=60).close()
            eventually(lambda: "could not be accepted: refused by the system" in caplog.text)
            if is_cut_off:
                assert sock.recv(1) == b""
            else:
                sock.sendall(frame(Cmd.DEVICE_COUNT))
                assert len(read(sock, 12)) == 12
