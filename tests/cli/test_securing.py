"""Whom llama-serve and llama-serve-bench trust with their weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from app.cli import serve as serve_program
from app.cli.benchmark.command import BenchCommand, read_bench_command
from app.cli.options import Command, read_command
from app.devices.null import NullDevice
from app.errors import ConfigError
from app.rpc_backend.streams.settings import ClientTls
from app.rpc_backend.wire.extensions import proof_key
from app.rpc_backend.worker.server import ServerSettings
from tests.helpers.certificates import Certificates
from tests.helpers.rpc_link import serving

SECRET: Final = b"0123456789abcdef"


def serve(*argv: str, **environ: str) -> Command:
    return read_command(argv, environ)


def bench(*argv: str, **environ: str) -> BenchCommand:
    return read_bench_command(["--list-devices", *argv], environ)


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o600)
    return path


def test_nothing_said_is_no_secret_and_no_tls() -> None:
    command = serve()
    assert (command.engine.rpc_secret, command.engine.rpc_tls) == (None, None)
    assert (bench().rpc_secret, bench().rpc_tls) == (None, None)


def test_the_secret_is_read_from_file_and_variables(secret_file: Path) -> None:
    file = str(secret_file)
    text = SECRET.decode()
    for command in (
        serve("--rpc-secret-file", file),
        serve(LLAMA_ARG_RPC_SECRET_FILE=file),
        serve(LLAMA_SERVE_RPC_SECRET=text),
        serve("--rpc-secret-file", file, LLAMA_SERVE_RPC_SECRET="another, long enough"),
    ):
        assert command.engine.rpc_secret == proof_key(SECRET)
        assert not any("secret" in warning for warning in command.warnings)
        assert text not in repr(command)
    for measured in (bench("--rpc-secret-file", file), bench(LLAMA_SERVE_RPC_SECRET=text)):
        assert measured.rpc_secret == proof_key(SECRET)
        assert text not in repr(measured)


def test_a_secret_that_everybody_can_read_is_told(secret_file: Path) -> None:
    secret_file.chmod(0o604)
    expected = (
        f"--rpc-secret-file {secret_file}: everybody on this machine can read it (mode 604): "
        "chmod 600"
    )
    assert expected in serve("--rpc-secret-file", str(secret_file)).warnings
    assert expected in bench("--rpc-secret-file", str(secret_file)).warnings


@pytest.mark.parametrize("read", [serve, bench])
def test_a_secret_that_is_none_is_refused(read: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match=r"--rpc-secret-file '/none': No such file"):
        read("--rpc-secret-file", "/none")
    with pytest.raises(ConfigError, match=r"--rpc-secret-file '': "):
        read("--rpc-secret-file", "")
    for text in ("", "too little"):
        with pytest.raises(ConfigError, match=f"SECRET: a secret of {len(text)} bytes") as caught:
            read(LLAMA_SERVE_RPC_SECRET=text)
        assert "little" not in str(caught.value)


def test_tls_is_asked_for_with_or_without_a_ca(certificates: Certificates) -> None:
    ca = str(certificates.trust.ca_file)
    assert serve("--rpc-tls").engine.rpc_tls == ClientTls()
    assert bench("--rpc-tls").rpc_tls == ClientTls()
    assert serve(LLAMA_ARG_RPC_TLS="on").engine.rpc_tls == ClientTls()
    assert serve("--rpc-tls-ca", ca).engine.rpc_tls == certificates.trust
    assert serve("--rpc-tls", LLAMA_ARG_RPC_TLS_CA=ca).engine.rpc_tls == certificates.trust
    assert bench("--rpc-tls-ca", ca).rpc_tls == certificates.trust


def test_a_file_without_certificates_is_refused(secret_file: Path) -> None:
    with pytest.raises(ConfigError, match=f"--rpc-tls-ca {secret_file}: "):
        serve("--rpc-tls-ca", str(secret_file))
    with pytest.raises(ConfigError, match=r"--rpc-tls-ca '': "):
        serve("--rpc-tls-ca", "")


def test_list_devices_says_what_is_missing(
    certificates: Certificates,
    secret_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    settings = ServerSettings(tls=certificates.own("127.0.0.1"), secret=proof_key(SECRET))
    other = tmp_path / "other"
    other.write_text("another secret, long enough")
    with serving([NullDevice()], settings) as server:
        endpoint = f"127.0.0.1:{server.port}"
        for flags, reason in (
            ([], "it demands TLS: give --rpc-tls or --rpc-tls-ca"),
            (["--rpc-tls"], "the worker's certificate is not trusted"),
            (["--rpc-tls", "--rpc-secret-file", str(other)], "its secret is another one"),
        ):
            assert serve_program.main(["--list-devices", "--rpc", endpoint, *flags]) == 1
            assert f"error: RPC worker {endpoint}: {reason}" in capsys.readouterr().err
        right = ["--rpc-tls", "--rpc-secret-file", str(secret_file)]
        assert serve_program.main(["--list-devices", "--rpc", endpoint, *right]) == 0
        said = capsys.readouterr()
        assert f"RPC0: {endpoint}" in said.out
        assert "API key" not in said.err
