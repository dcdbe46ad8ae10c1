"""The worker's secret, its certificate, and what it says when others can reach it."""

import os
from pathlib import Path

import pytest

from app.cli.rpc_server import parse_options
from app.cli.worker_security import Security, open_warning
from app.errors import ConfigError
from app.rpc_backend.streams.settings import ClientTls, ServerTls
from app.rpc_backend.wire.extensions import proof_key
from tests.helpers.certificates import Certificates

SECRET = b"0123456789abcdef"
TLS = ServerTls(Path("c"), Path("k"))
SYSTEM = ClientTls(flag="--tls-ca")


def secret_file(folder: Path, content: bytes, mode: int = 0o600) -> str:
    path = folder / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"], ids=repr)
def test_the_secret_is_the_file_without_the_end_of_its_line(tmp_path: Path, end: bytes) -> None:
    security = parse_options(["--secret-file", secret_file(tmp_path, SECRET + end)], {}).security
    assert (security.secret, security.remarks) == (proof_key(SECRET), ())
    environ = {"LLAMA_SERVE_RPC_SECRET": os.fsdecode(SECRET + end)}
    assert parse_options([], environ).security.secret == proof_key(SECRET)


def test_only_one_end_of_line_is_taken_off(tmp_path: Path) -> None:
    path = secret_file(tmp_path, SECRET + b"\n\n")
    assert parse_options(["--secret-file", path], {}).security.secret == proof_key(SECRET + b"\n")


def test_bytes_that_are_no_text_are_a_secret_in_a_file_and_in_the_variable(tmp_path: Path) -> None:
    raw = bytes(range(128, 160))
    path = secret_file(tmp_path, raw)
    assert parse_options(["--secret-file", path], {}).security.secret == proof_key(raw)
    environ = {"LLAMA_SERVE_RPC_SECRET": os.fsdecode(raw)}
    assert parse_options([], environ).security.secret == proof_key(raw)


def test_the_flag_overrides_the_variable(tmp_path: Path) -> None:
    environ = {"LLAMA_SERVE_RPC_SECRET": "another secret, long enough"}
    path = secret_file(tmp_path, SECRET)
    assert parse_options(["--secret-file", path], environ).security.secret == proof_key(SECRET)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"too little", SECRET[:-1] + b"\n", b" " * 20], ids=repr
)
def test_short_secrets_are_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    path = secret_file(tmp_path, content)
    with pytest.raises(ConfigError, match=f"--secret-file '{path}': .*expected 16") as caught:
        parse_options(["--secret-file", path], {})
    assert "little" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"LLAMA_SERVE_RPC_SECRET: .*expected 16") as caught:
        parse_options([], {"LLAMA_SERVE_RPC_SECRET": content.decode().strip()})
    assert "little" not in str(caught.value)


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"/dev/zero.*to 4096"):
        parse_options(["--secret-file", "/dev/zero"], {})


@pytest.mark.parametrize("path", ["", "/no/such/file", "/"])
def test_no_file_is_not_no_secret(path: str) -> None:
    with pytest.raises(ConfigError, match=f"--secret-file '{path}': "):
        parse_options(["--secret-file", path], {})


def test_a_secret_that_everybody_can_read_is_told(tmp_path: Path) -> None:
    path = secret_file(tmp_path, SECRET, 0o644)
    (remark,) = parse_options(["--secret-file", path], {}).security.remarks
    assert remark == (
        f"--secret-file {path}: everybody on this machine can read it (mode 644): chmod 600"
    )


def test_no_text_form_of_the_options_has_the_secret(tmp_path: Path) -> None:
    options = parse_options(["--secret-file", secret_file(tmp_path, SECRET)], {})
    assert SECRET.decode() not in repr(options)
    assert repr(options.security.secret) not in repr(options)


def test_the_certificate_is_read_at_once(certificates: Certificates, tmp_path: Path) -> None:
    own = certificates.own("127.0.0.1")
    argv = ["--tls-cert", str(own.cert_file), "--tls-key", str(own.key_file)]
    own.key_file.chmod(0o600)
    assert parse_options(argv, {}).security == Security(tls=own, trust=SYSTEM)
    own.key_file.chmod(0o644)
    (remark,) = parse_options(argv, {}).security.remarks
    assert remark.startswith(f"--tls-key {own.key_file}: everybody on this machine can read it")
    with pytest.raises(ConfigError, match="both --tls-cert and --tls-key"):
        parse_options(argv[:2], {})
    with pytest.raises(ConfigError, match="both --tls-cert and --tls-key"):
        parse_options(["--tls-key", str(own.key_file)], {})
    missing = str(tmp_path / "none.pem")
    with pytest.raises(ConfigError, match=rf"{missing}.*No such file"):
        parse_options(["--tls-cert", missing, "--tls-key", str(own.key_file)], {})
    other = certificates.own("127.0.0.1")
    with pytest.raises(ConfigError, match="key values mismatch"):
        parse_options(["--tls-cert", str(own.cert_file), "--tls-key", str(other.key_file)], {})


def test_what_other_workers_are_checked_by_is_read_at_once(
    certificates: Certificates, tmp_path: Path
) -> None:
    own = certificates.own("127.0.0.1")
    tls = ["--tls-cert", str(own.cert_file), "--tls-key", str(own.key_file)]
    assert parse_options([], {}).security.trust == SYSTEM
    argv = ["--tls-ca", str(own.cert_file)]
    assert parse_options([*tls, *argv], {}).security.trust == ClientTls(own.cert_file, "--tls-ca")
    with pytest.raises(ConfigError, match="--tls-ca: only a worker with --tls-cert"):
        parse_options(argv, {})
    other = tmp_path / "other.pem"
    other.write_text("no certificate\n")
    for path in (other, tmp_path / "none.pem"):
        with pytest.raises(ConfigError, match=f"--tls-ca {path}: .*expected certificates in PEM"):
            parse_options([*tls, "--tls-ca", str(path)], {})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_nothing_is_said_on_this_machine_alone(host: str) -> None:
    assert open_warning(host, Security()) == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7"])
def test_an_open_address_is_as_loud_as_it_is_dangerous(host: str) -> None:
    bare, encrypted = open_warning(host, Security()), open_warning(host, Security(tls=TLS))
    for loud in (bare, encrypted):
        assert "WARNING" in loud
        assert f"on {host}," in loud
        assert loud.count("\n") > 5
    assert "no secret and no encryption" in bare
    assert "encryption but no secret" in encrypted
    note = open_warning(host, Security(SECRET))
    assert note.startswith("note: ")
    assert "without TLS" in note
    assert "\n" not in note
    assert open_warning(host, Security(SECRET, TLS)) == ""


def test_the_list_of_addresses_is_read_and_said() -> None:
    argv = ["--allow", "10.0.0.7/24, ::1", "--allow", "192.168.1.5,::ffff:10.1.0.0/112"]
    security = parse_options(argv, {}).security
    assert security.places == "10.0.0.0/24, ::1/128, 192.168.1.5/32, 10.1.0.0/16"
    assert parse_options([], {}).security.places == ""
    assert f"this port from {security.places} can" in open_warning("0.0.0.0", security)


@pytest.mark.parametrize("text", ["", "gpu-box", "10.0.0.0/33", "10.0.0.1,", "10.0.0.0-9"])
def test_what_is_no_address_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--allow: .*expected addresses or networks"):
        parse_options(["--allow", text], {})


def test_what_clients_need_is_said_in_words() -> None:
    assert Security().words == "nothing"
    assert Security(SECRET).words == "a secret"
    assert Security(SECRET, TLS).words == "TLS and a secret"
