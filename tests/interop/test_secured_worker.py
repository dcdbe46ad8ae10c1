"""Stock main hosts on workers that are not for everybody: they get nowhere, the worker says why and
serves those that may come.
"""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.streams.settings import ClientTls
from app.rpc_backend.wire.extensions import proof_key
from tests.helpers.assets import asset
from tests.helpers.certificates import Certificates
from tests.helpers.eventually import eventually
from tests.helpers.process import own_worker

SECRET: Final = b"a secret of some length"

pytestmark = [pytest.mark.peer_v8, pytest.mark.slow]


def stock_client_fails(port: int) -> str:
    """Run the stock client of version 8 on a worker; return its last words."""
    client, model = str(asset("peer_v8") / "client"), str(asset("smollm2"))
    command = [client, model, f"127.0.0.1:{port}", "1, 2, 3,", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert '"text"' not in done.stdout
    return done.stderr[-1000:]


def flags_of(tmp_path: Path, certificates: Certificates, *, tls: bool, secret: bool) -> list[str]:
    flags: list[str] = []
    if tls:
        made = certificates.signed("127.0.0.1")
        flags += ["--tls-cert", str(made.cert_file), "--tls-key", str(made.key_file)]
    if secret:
        file = tmp_path / "secret"
        file.write_bytes(SECRET + b"\n")
        file.chmod(0o600)
        flags += ["--secret-file", str(file)]
    return flags


@pytest.mark.parametrize(
    ("tls", "secret", "line", "needs"),
    [
        (True, False, "refused: a client without TLS", "TLS"),
        (False, True, "refused: this worker has a secret", "a secret"),
        (True, True, "refused: a client without TLS", "TLS and a secret"),
    ],
    ids=["tls", "secret", "both"],
)
def test_a_stock_client_is_refused_and_the_worker_lives(
    tmp_path: Path, certificates: Certificates, tls: bool, secret: bool, line: str, needs: str
) -> None:
    flags = flags_of(tmp_path, certificates, tls=tls, secret=secret)
    with own_worker(*flags) as (worker, port):
        eventually(lambda: f"clients need   : {needs}\n" in worker.output)
        words = stock_client_fails(port)
        assert "crashed or returned malformed response" in words
        eventually(lambda: line in worker.output)
        trust = ClientTls(certificates.trust.ca_file) if tls else None
        settings = ClientSettings(secret=proof_key(SECRET) if secret else None, tls=trust)
        (device,) = open_workers([f"127.0.0.1:{port}"], settings)
        assert device.memory().total > 0
        device.close()
        assert worker.terminate() == 0
        assert SECRET.decode() not in worker.output
