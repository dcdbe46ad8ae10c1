"""Addresses become listening sockets."""

import socket
from pathlib import Path

import pytest

from app.api.settings import ServerSettings
from app.cli.listen import Listener, open_listeners, remove_unix_paths
from app.errors import ConfigError
from tests.helpers.process import free_port


def close(listeners: list[Listener]) -> None:
    for listener in listeners:
        listener.socket.close()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_port_zero_is_any_free_port() -> None:
    listeners = open_listeners(ServerSettings(port=0))
    port = listeners[0].socket.getsockname()[1]
    assert listeners[0].url == f"http://127.0.0.1:{port}"
    socket.create_connection(("127.0.0.1", port), timeout=60).close()
    close(listeners)


def test_both_families_on_one_port() -> None:
    if not has_ipv6():
        pytest.skip("IPv6 loopback is unavailable")
    port = free_port()
    listeners = open_listeners(ServerSettings(hosts=("127.0.0.1", "::1"), port=port))
    assert [listener.url for listener in listeners] == [
        f"http://127.0.0.1:{port}",
        f"http://[::1]:{port}",
    ]
    close(listeners)


def test_a_unix_socket_is_made_replaced_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "llama.sock"
    settings = ServerSettings(hosts=(str(path),), port=0)
    close(open_listeners(settings))
    assert path.is_socket(), "left behind, as after a crash"
    listeners = open_listeners(settings)
    assert listeners[0].url == f"unix://{path}"
    close(listeners)
    remove_unix_paths(listeners)
    assert not path.exists()


def test_a_live_unix_socket_and_a_plain_file_are_left_alone(tmp_path: Path) -> None:
    live = ServerSettings(hosts=(str(tmp_path / "live.sock"),))
    listeners = open_listeners(live)
    with pytest.raises(ConfigError, match=r"live\.sock"):
        open_listeners(live)
    close(listeners)
    plain = tmp_path / "plain.sock"
    plain.write_text("mine")
    with pytest.raises(ConfigError, match=r"plain\.sock"):
        open_listeners(ServerSettings(hosts=(str(plain),)))
    assert plain.read_text() == "mine"


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (("192.0.2.1",), r"cannot listen on 192\.0\.2\.1:8080"),
        (("nobody.invalid",), r"--host nobody\.invalid"),
        (("127.0.0.1", "::1"), "--port 0 is not supported"),
        ((), "--host"),
    ],
)
def test_what_cannot_be_had_is_named(hosts: tuple[str, ...], message: str) -> None:
    port = 0 if len(hosts) > 1 else 8080
    with pytest.raises(ConfigError, match=message):
        open_listeners(ServerSettings(hosts=hosts, port=port))


def test_a_taken_port_is_refused_and_nothing_stays_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            open_listeners(ServerSettings(port=port))
