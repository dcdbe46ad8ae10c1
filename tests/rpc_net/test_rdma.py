"""Peers that offer RDMA: both ends answer zeros and say so once."""

import logging
import socket
import struct
from collections.abc import Iterator
from typing import Final

import pytest

from app.devices.null import NullDevice
from app.errors import DeviceLostError
from app.rpc_backend import rdma
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.rdma import keep_quiet
from app.rpc_backend.worker.session import Session
from tests.helpers.fake_worker import fake_worker, read
from tests.helpers.rpc_frames import HELLO, frame, response
from tests.helpers.rpc_link import MemoryLink

OFFER: Final = struct.pack("<II", 77, 78) + bytes(10) + b"\xff\xff\x0a\x00\x00\x07"
SAID: Final = "offers RDMA (queue pair 77, packet sequence number 78, GID 10.0.0.7)"


@pytest.fixture
def loud(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, rdma.log.name):
        yield caplog


def greet_worker(offer: bytes) -> bytes:
    """Say HELLO to a fresh session and return what its reply says of capabilities."""
    link = MemoryLink([NullDevice()])
    link.session = Session([NullDevice()], 8, peer="10.0.0.7:4711")
    return link.raw(frame(14, offer))[-24:]


def test_a_worker_stays_on_tcp_and_names_the_client(loud: pytest.LogCaptureFixture) -> None:
    assert greet_worker(OFFER) == bytes(24)
    assert [record.getMessage() for record in loud.records] == [
        f"10.0.0.7:4711 {SAID}; it stays on TCP, which is all there is here"
    ]


def test_a_client_without_an_offer_is_not_mentioned(loud: pytest.LogCaptureFixture) -> None:
    assert greet_worker(bytes(24)) == bytes(24)
    assert not loud.records


def test_who_wants_no_rdma_hears_nothing_of_it(loud: pytest.LogCaptureFixture) -> None:
    keep_quiet()
    assert greet_worker(OFFER) == bytes(24)
    assert not loud.records


def test_a_client_stays_on_tcp_and_names_the_worker(loud: pytest.LogCaptureFixture) -> None:
    hellos: list[bytes] = []

    def script(sock: socket.socket) -> None:
        hellos.append(read(sock, len(HELLO)))
        sock.sendall(response(bytes([8, 0, 0, 0]) + OFFER))

    with fake_worker(script) as endpoint, pytest.raises(DeviceLostError):
        open_workers([endpoint])
    assert hellos == [HELLO]
    assert f"RPC worker {endpoint} {SAID}" in loud.text
