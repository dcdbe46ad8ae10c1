"""Certificates that are renewed in their files under a running worker: new connections get the new
one, and what cannot be used changes nothing.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from app.devices.null import NullDevice
from app.errors import ConfigError
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.streams.renewal import Renewed
from app.rpc_backend.streams.settings import ClientTls, ServerTls
from app.rpc_backend.worker.server import ServerSettings
from tests.helpers.certificates import Certificates
from tests.helpers.rpc_link import serving

HOST: Final = "127.0.0.1"
SECRET: Final = b"a secret of some length"


def put(source: Path, target: Path) -> None:
    """Replace a file as whoever renews certificates does."""
    fresh = target.with_suffix(".new")
    shutil.copyfile(source, fresh)
    os.replace(fresh, target)


def renew(shown: ServerTls, made: ServerTls) -> None:
    put(made.cert_file, shown.cert_file)
    put(made.key_file, shown.key_file)


@pytest.fixture
def shown(certificates: Certificates, tmp_path: Path) -> ServerTls:
    """The files that the worker is told of, with a certificate of their own in them."""
    files = ServerTls(tmp_path / "worker.pem", tmp_path / "worker.key")
    renew(files, certificates.own(HOST))
    return files


@pytest.fixture
def port(shown: ServerTls) -> Iterator[int]:
    with serving([NullDevice()], ServerSettings(tls=shown, secret=SECRET)) as server:
        yield server.port


def opened(port: int, trusted: Path | None) -> RpcDevice:
    settings = ClientSettings(tls=ClientTls(trusted), secret=SECRET)
    (device,) = open_workers([f"{HOST}:{port}"], settings)
    return device


def is_served(port: int, trusted: Path | None) -> bool:
    device = opened(port, trusted)
    total = device.memory().total
    device.close()
    return total > 0


def test_new_connections_get_the_renewed_certificate_and_old_ones_go_on(
    certificates: Certificates, shown: ServerTls, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = opened(port, shown.cert_file)
    made = certificates.own(HOST)
    renew(shown, made)
    assert is_served(port, made.cert_file)
    # The proof of the secret names the new one.
    assert is_served(port, None)
    assert before.memory().total > 0
    before.close()
    assert caplog.text.count(f"{shown.cert_file}, {shown.key_file}: changed") == 1


def test_a_renewal_that_is_half_done_or_broken_changes_nothing(
    certificates: Certificates, shown: ServerTls, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    old, made = shown.cert_file.with_suffix(".old"), certificates.own(HOST)
    shutil.copyfile(shown.cert_file, old)
    shown.cert_file.write_text("no certificate\n")
    assert is_served(port, old)
    assert is_served(port, old)
    assert caplog.text.count("what was read before is still used") == 1
    shown.cert_file.unlink()
    assert is_served(port, old)
    put(made.cert_file, shown.cert_file)
    assert is_served(port, old)
    assert "key values mismatch" in caplog.text
    put(made.key_file, shown.key_file)
    assert is_served(port, made.cert_file)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    renewed = Renewed([path], path.read_text)
    path.unlink()
    os.mkfifo(path)
    assert renewed.current() == "old"


def test_a_file_that_fails_in_whatever_way_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, failures = tmp_path / "file", list[OSError]()
    path.write_text("old")

    def load() -> str:
        if failures:
            raise failures.pop()
        return path.read_text()

    renewed = Renewed([path], load)
    path.write_text("and longer")
    failures.append(PermissionError(13, "Permission denied"))
    assert renewed.current() == "old"
    assert "Permission denied; what was read before is still used" in caplog.text


def test_what_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("first")

    def load() -> str:
        text = path.read_text()
        if text == "first":
            path.write_text("and longer")
        return text

    renewed = Renewed([path], load)
    assert renewed.current() == "and longer"


def test_files_that_can_never_be_used_are_an_error(tmp_path: Path) -> None:
    def load() -> str:
        raise ConfigError("no such file")

    with pytest.raises(ConfigError, match="no such file"):
        Renewed([tmp_path / "none"], load)
