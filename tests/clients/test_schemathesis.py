"""Schemathesis asks every operation of the OpenAPI document: no 500, and answers as described."""

from pathlib import Path

import pytest

from tests.clients.programs import client_program, run_client
from tests.helpers.assets import asset
from tests.helpers.server_process import Server, running_server

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
SIZES = ("-c", "512", "-np", "2", "-t", "1", "-n", "8")
EVERYTHING = ("--phases=examples,fuzzing",)
# Each value that a schema mentions, once; paths that mean the same are left to the other run.
EACH_VALUE = ("--phases=coverage", "--include-path-regex=^/(v1|tok|detok|apply|infill|slots|lora)")
EMBEDDING = ("--phases=examples,coverage,fuzzing", "--include-path-regex=(embedding|rank)")

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


def ask_everything(server: Server, folder: Path, *flags: str) -> None:
    """Run Schemathesis to its end; it must find nothing."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    run_client(
        client_program("schemathesis"),
        f"--config-file={config}",
        "run",
        f"{server.url}/openapi.json",
        f"--checks={','.join(CHECKS)}",
        f"--max-examples={N_EXAMPLES}",
        "--seed=1",
        "--workers=2",
        "--suppress-health-check=all",
        "--generation-database=none",
        *flags,
        HOME=str(folder),
    )
    assert server.is_ready()


def test_a_server_that_generates_is_as_described(tmp_path: Path) -> None:
    slots = tmp_path / "slots"
    slots.mkdir()
    saved = ("--slot-save-path", str(slots))
    model = str(asset("stories260k"))
    with running_server("-m", model, *SIZES, "--metrics", "--props", *saved) as server:
        ask_everything(server, tmp_path, *EVERYTHING)
        ask_everything(server, tmp_path, *EACH_VALUE)


def test_a_server_that_embeds_is_as_described(tmp_path: Path) -> None:
    model = str(asset("stories260k"))
    with running_server("-m", model, *SIZES, "--embeddings", "--pooling", "mean") as server:
        ask_everything(server, tmp_path, *EMBEDDING)
