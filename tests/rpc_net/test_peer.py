"""How a client's connection ends: whatever fails meanwhile, nothing of it stays."""

import logging
import socket
from types import SimpleNamespace
from typing import cast

import pytest

from app.devices.base import BufferUsage
from app.devices.null import NullDevice
from app.ggml.tensor import Buffer
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.wire import messages as m
from app.rpc_backend.worker.peer import Peer
from app.rpc_backend.worker.refusals import Refusals
from app.rpc_backend.worker.session import Session
from tests.helpers.eventually import eventually
from tests.helpers.rpc_link import MemoryLink, serving


class Stubborn(NullDevice):
    """A device that fails, in a way that nobody expects, to free the first buffer."""

    def free(self, buffer: Buffer) -> None:
        """Fail once."""
        if self.calls["free"] == 0:
            self.calls["free"] += 1
            raise RuntimeError("the driver is out of its mind")
        super().free(buffer)


def test_a_buffer_that_cannot_be_freed_keeps_neither_the_others_nor_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = Stubborn()
    with serving([device]) as server:
        (remote,) = open_workers([f"127.0.0.1:{server.port}"])
        for _ in range(3):
            remote.alloc(64, BufferUsage.ANY)
        remote.synchronize()
        remote.connection.close()
        eventually(lambda: server.n_clients == 0)
        assert len(device.buffers) == 1
    assert "a buffer was not freed" in caplog.text
    assert "out of its mind" in caplog.text


def test_refused_buffers_and_groups_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    link = MemoryLink([NullDevice(total=1000)])
    for _ in range(100):
        assert link.call(m.AllocBuffer(0, 2000)) == m.AllocBufferReply(0, 0)
        assert link.call(m.CommInit(0, 9, 9, 1, bytes(64))) == m.FlagReply(0)
    assert len(caplog.records) == 101
    assert "its further failures are only counted" in caplog.text


def test_whether_a_client_has_left_may_be_asked_while_its_socket_is_being_closed() -> None:
    here, there = socket.socketpair()
    with here, there:
        numbers = iter([here.fileno(), -1, -1])
        closing = cast(socket.socket, SimpleNamespace(fileno=lambda: next(numbers)))
        session = Session([NullDevice()], 8)
        peer = Peer(closing, "peer", session, None, 1.0, lambda peer: None, Refusals())
        assert not peer.has_left()
        assert peer.has_left()
