"""HTTPS whose files are renewed: handshakes from then on show the new certificate."""

import shutil
import ssl
from pathlib import Path

import pytest

from app.api.settings import TlsSettings
from app.cli.https import renew_certificate
from app.errors import ConfigError
from app.rpc_backend.streams.settings import ServerTls
from tests.helpers.certificates import Certificates

HOST = "127.0.0.1"


def put(made: ServerTls, files: TlsSettings) -> None:
    shutil.copyfile(made.cert_file, files.cert_file)
    shutil.copyfile(made.key_file, files.key_file)


def shown_to(trusted: Path, server: ssl.SSLContext, name: str | None) -> bytes | None:
    """Shake hands in memory and return the certificate that was shown."""
    client = ssl.create_default_context(cafile=trusted)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.check_hostname = name is not None
    ends = [ssl.MemoryBIO() for _ in range(2)]
    near = client.wrap_bio(ends[0], ends[1], server_hostname=name)
    far = server.wrap_bio(ends[1], ends[0], server_side=True)
    for end in (near, far, near, far):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return near.getpeercert(binary_form=True)


@pytest.mark.parametrize("name", [HOST, None])
def test_a_renewed_certificate_is_shown_from_then_on(
    certificates: Certificates, tmp_path: Path, name: str | None
) -> None:
    files = TlsSettings(tmp_path / "key.pem", tmp_path / "cert.pem")
    put(certificates.own(HOST), files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert_file, files.key_file)
    renew_certificate(context, files)
    first = shown_to(files.cert_file, context, name)
    assert first is not None
    made = certificates.own(HOST)
    put(made, files)
    second = shown_to(made.cert_file, context, name)
    assert second not in (None, first)
    files.cert_file.write_text("no certificate\n")
    assert shown_to(made.cert_file, context, name) == second


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    files = TlsSettings(tmp_path / "key.pem", tmp_path / "cert.pem")
    files.cert_file.write_text("none\n")
    with pytest.raises(ConfigError, match=rf"--ssl-cert-file {files.cert_file} --ssl-key-file"):
        renew_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files)
