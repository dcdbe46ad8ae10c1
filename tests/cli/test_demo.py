"""The demo's workers: they serve while wanted and never outlive the process that started them."""

import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.cli import demo
from app.cli.demo import DEMO_MODEL, require_free_port, start_demo_workers
from app.cli.model_source import prepare_model
from app.cli.options import read_command
from app.cli.packaged_file import is_intact
from app.errors import ConfigError, DeviceLostError
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from tests.helpers.assets import asset
from tests.helpers.eventually import eventually
from tests.helpers.process import free_port

STARTER = """
import signal, time
from app.cli.demo import exit_on_sigterm, start_demo_workers
signal.signal(signal.SIGINT, signal.default_int_handler)
exit_on_sigterm()
with start_demo_workers(1) as workers:
    print(workers.endpoints[0], flush=True)
    while True:
        time.sleep(0.05)
"""


def answers(endpoint: str) -> bool:
    host, port = endpoint.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


def test_two_workers_answer_on_ports_of_their_own_until_the_end() -> None:
    with start_demo_workers(2) as workers:
        assert len(set(workers.endpoints)) == 2
        assert all(answers(endpoint) for endpoint in workers.endpoints)
    assert not any(answers(endpoint) for endpoint in workers.endpoints)


def test_workers_end_when_the_block_raises() -> None:
    with pytest.raises(KeyboardInterrupt), start_demo_workers(1) as workers:
        raise KeyboardInterrupt
    assert not answers(workers.endpoints[0])


@pytest.mark.parametrize(
    ("deadly", "exit_code"),
    [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, -signal.SIGINT), (signal.SIGKILL, -9)],
)
def test_workers_end_with_their_starter(deadly: signal.Signals, exit_code: int) -> None:
    command = [sys.executable, "-c", STARTER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as starter:
        assert starter.stdout is not None
        endpoint = starter.stdout.readline().strip()
        assert answers(endpoint)
        starter.send_signal(deadly)
        starter.communicate(timeout=60)
        assert starter.returncode == exit_code
    eventually(lambda: not answers(endpoint))


def test_a_worker_that_ends_at_once_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such device\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    refused = pytest.raises(DeviceLostError, match="ended with 3: no such device")
    with refused, start_demo_workers(1):
        pass


def test_a_busy_port_is_named() -> None:
    port = free_port()
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*--port"),
    ):
        require_free_port("127.0.0.1", port)
    require_free_port("127.0.0.1", port)


def test_a_foreign_address_is_named() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        require_free_port("192.0.2.1", 8080)


def test_the_cached_demo_model_is_the_one_that_is_named() -> None:
    assert is_intact(asset("smollm2"), DEMO_MODEL)


def test_the_workers_know_the_secret_that_the_server_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"a secret of some length\n")
    secret.chmod(0o600)
    monkeypatch.setattr(demo, "ensure_demo_model", lambda progress: tmp_path / "model")
    command = read_command(["--demo", "--rpc-secret-file", str(secret)], {})
    with ExitStack() as cleanup:
        _, endpoints = prepare_model(command, cleanup)
        devices = open_workers(endpoints, ClientSettings(secret=command.engine.rpc_secret))
        assert len(devices) == len(endpoints)
        for device in devices:
            device.close()
