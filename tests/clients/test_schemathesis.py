"""Schemathesis asks every operation of the OpenAPI document: no 500, and answers as described."""

import time
from pathlib import Path

import pytest

from tests.clients.programs import client_program, run_client
from tests.helpers.assets import asset
from tests.helpers.server_process import running_server

CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501, 503]
"""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
N_EXAMPLES = 12
TIME_LIMIT_S = 60

pytestmark = pytest.mark.clients

MODES = {
    "generating": ("--metrics", "--props", "-n", "8"),
    "embedding": ("--embeddings", "--pooling", "mean"),
}


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_a_500_and_all_is_as_described(mode: str, tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    sizes = ("-c", "512", "-np", "2", "-t", "1")
    with running_server("-m", str(asset("stories260k")), *sizes, *MODES[mode]) as server:
        started = time.monotonic()
        run_client(
            client_program("schemathesis"),
            f"--config-file={config}",
            "run",
            f"{server.url}/openapi.json",
            f"--checks={','.join(CHECKS)}",
            "--phases=examples,coverage,fuzzing",
            f"--max-examples={N_EXAMPLES}",
            "--seed=1",
            "--workers=2",
            "--suppress-health-check=all",
            "--generation-database=none",
            HOME=str(tmp_path),
        )
        assert time.monotonic() - started < TIME_LIMIT_S
        assert server.is_ready()
