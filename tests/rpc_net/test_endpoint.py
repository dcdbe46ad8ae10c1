"""Endpoint lists as people type them."""

import logging
import socket

import pytest

from app.errors import ConfigError
from app.rpc_backend.client import endpoint as endpoint_module
from app.rpc_backend.client.endpoint import Endpoint, connect, parse_endpoint, parse_endpoints


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost", "localhost", 50052),
        ("192.168.1.7:50053", "192.168.1.7", 50053),
        (" gpu-box.lan:1 ", "gpu-box.lan", 1),
        ("[::1]:50052", "::1", 50052),
        ("[fe80::1%eth0]", "fe80::1%eth0", 50052),
    ],
)
def test_endpoints_read_and_print(text: str, host: str, port: int) -> None:
    endpoint = parse_endpoint(text)
    assert endpoint == Endpoint(host, port)
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":50052",
        "a:0",
        "a:65536",
        "a:x",
        "a:-1",
        "a:1:2",
        "::1",
        "[::1",
        "[::1]50052",
        "[]:1",
        "a:" + "1" * 5000,
    ],
)
def test_malformed_endpoints_are_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match="RPC endpoint"):
        parse_endpoint(text)


@pytest.mark.parametrize("text", ["http://a:1", "a b:1", "a:²", "a: 1"])
def test_other_things_are_not_endpoints(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_endpoint(text)


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        """Like time.monotonic."""
        return self.now


def test_an_address_that_never_answers_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, sock, left = Clock(), socket.socket(), []

    def open_(kind: object, address: tuple[str, int], deadline: float) -> socket.socket:
        left.append(deadline - clock.now)
        clock.now = deadline
        if len(left) < 3:
            raise TimeoutError
        return sock

    rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.0.0.{i}", 1)) for i in range(3)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
    monkeypatch.setattr(endpoint_module, "time", clock)
    monkeypatch.setattr(endpoint_module, "_open", open_)
    with sock:
        assert connect(Endpoint("gpu-box", 1), 106.0) is sock
    assert left == [2.0, 2.0, 2.0]


def test_lists_keep_their_order() -> None:
    assert parse_endpoints(["a:1,b:2", "c"]) == [
        Endpoint("a", 1),
        Endpoint("b", 2),
        Endpoint("c", 50052),
    ]


def test_a_repeated_endpoint_counts_once_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse_endpoints(["a:1,b:2", "a:1"]) == [Endpoint("a", 1), Endpoint("b", 2)]
    assert "a:1 is given more than once" in caplog.text


def test_empty_entries_are_refused() -> None:
    with pytest.raises(ConfigError):
        parse_endpoints(["a:1,"])


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("10.0.0.1", False)]
)
def test_loopback_is_recognised(host: str, local: bool) -> None:
    assert Endpoint(host, 1).is_loopback == local
