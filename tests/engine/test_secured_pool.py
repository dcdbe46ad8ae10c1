"""A pool whose workers demand TLS and a secret says what this machine alone says."""

from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from app.engine.pool import open_pool
from app.errors import DeviceLostError
from app.rpc_backend.streams.settings import ClientTls
from app.rpc_backend.wire.extensions import proof_key
from tests.helpers.assets import asset
from tests.helpers.certificates import Certificates
from tests.helpers.local_engine import running_engine, small_run
from tests.helpers.process import own_worker

PROMPT: Final = "One day, a little girl named Lily found a needle in her room."
SECRET: Final = b"a secret of some length"


def test_two_secured_workers_write_what_this_machine_writes(
    certificates: Certificates, tmp_path: Path
) -> None:
    stories = asset("stories260k")
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET + b"\n")
    with running_engine(small_run(stories, devices=())) as asker:
        expected = asker.greedy(PROMPT, 24)
    with ExitStack() as workers:
        endpoints = []
        for _ in range(2):
            made = certificates.own("elsewhere.example")
            flags = ["--secret-file", str(secret), "--tls-cert", str(made.cert_file)]
            flags += ["--tls-key", str(made.key_file)]
            endpoints.append(f"127.0.0.1:{workers.enter_context(own_worker(*flags))[1]}")
        plan = small_run(
            stories,
            endpoints,
            rpc_secret=proof_key(SECRET),
            rpc_tls=ClientTls(),
            tensor_split=(1.0, 1.0),
        )
        with running_engine(plan) as asker:
            assert asker.greedy(PROMPT, 24).tokens == expected.tokens
            stats = asker.engine.stats().workers
            assert [worker.endpoint for worker in stats] == endpoints
            assert all(worker.bytes_sent > 100_000 for worker in stats)
        wrong = small_run(stories, endpoints, rpc_secret=SECRET[::-1], rpc_tls=ClientTls())
        with pytest.raises(DeviceLostError, match="secret") as caught:
            open_pool(wrong)
        assert all(endpoint in str(caught.value) for endpoint in endpoints)
