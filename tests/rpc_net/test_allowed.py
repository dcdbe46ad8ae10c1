"""Which addresses may connect: who is not in the list is sent away before a byte is read."""

import socket
from ipaddress import ip_network
from typing import Final

import pytest

from app.devices.null import NullDevice
from app.errors import DeviceLostError
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.wire import messages as m
from app.rpc_backend.worker.all_reduce import Groups
from app.rpc_backend.worker.allowed import is_allowed
from app.rpc_backend.worker.link import LinkLimits
from app.rpc_backend.worker.server import ServerSettings
from tests.helpers.process import free_port
from tests.helpers.rpc_link import MemoryLink, serving

HERE: Final = (ip_network("127.0.0.0/8"),)
ELSEWHERE: Final = (ip_network("192.0.2.0/24"), ip_network("2001:db8::/32"))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.1.2.3", True),
        ("10.2.0.0", False),
        ("::ffff:10.1.2.3", True),
        ("::ffff:10.2.0.0", False),
        ("fe80::1%eth0", True),
        ("fe80::2%eth0", False),
        ("::1", False),
    ],
)
def test_an_address_is_in_the_list_or_not(host: str, expected: bool) -> None:
    networks = (ip_network("10.1.0.0/16"), ip_network("fe80::1"))
    assert is_allowed(host, networks) is expected
    assert is_allowed(host, ())


def test_a_client_from_elsewhere_is_sent_away_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with serving([NullDevice()], ServerSettings(allowed=ELSEWHERE)) as server:
        with pytest.raises(DeviceLostError):
            open_workers([f"127.0.0.1:{server.port}"])
        assert server.n_clients == 0
    assert "refused: its address is not in --allow" in caplog.text


def test_a_client_from_there_is_served() -> None:
    with serving([NullDevice()], ServerSettings(allowed=HERE)) as server:
        (device,) = open_workers([f"127.0.0.1:{server.port}"])
        assert device.memory().total > 0
        device.close()


def test_the_other_worker_of_a_group_must_be_in_the_list(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    link, port = MemoryLink([NullDevice()]), free_port()

    def has_left() -> bool:
        """Asked while nobody has come: let somebody come."""
        if not visitors:
            visitors.append(socket.create_connection(("127.0.0.1", port)))
        return False

    visitors: list[socket.socket] = []
    link.session.state.groups = Groups("127.0.0.1", LinkLimits(0.5, 0.5, 0.5), has_left, ELSEWHERE)
    try:
        assert link.call(m.CommInit(0, 0, 2, port, bytes(64))) == m.FlagReply(0)
        assert visitors[0].recv(1) == b""
    finally:
        for visitor in visitors:
            visitor.close()
    assert "rank 1 at 127.0.0.1: not in --allow" in caplog.text
