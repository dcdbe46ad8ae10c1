"""Runs the installed clients, and the server that they ask."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.assets import PROJECT_ROOT, asset
from tests.helpers.server_process import Server, running_server

SCRIPTS: Final = PROJECT_ROOT / "tests" / "clients" / "scripts"
NODE_SCRIPTS: Final = PROJECT_ROOT / "tests" / "clients" / "node"
CLIENT_TIMEOUT_S: Final = 280
SIZES: Final = ("-c", "4096", "-t", "1")
# What other requests left in the cache changes the order of sums, which can tip a close call
# between two words: with one slot that forgets, a text is the same each time.
REPEATABLE: Final = ("-np", "1", "--no-cache-prompt")


@contextmanager
def chat_server(*flags: str, port: int | None = None) -> Iterator[Server]:
    """Serve SmolLM2 on this machine."""
    model = str(asset("smollm2"))
    with running_server("-m", model, *SIZES, *REPEATABLE, *flags, port=port) as server:
        yield server


def client_program(name: str) -> Path:
    """Return a program of the Python clients' environment."""
    return asset("clients") / "python" / "bin" / name


def system_program(name: str) -> str:
    """Return the path of a program of the system, or skip the test."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: it comes from the system's packages")
    return found


def run_client(*command: str | Path, **environment: str) -> str:
    """Run a client to its end and return its output; it must succeed."""
    given = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", **environment}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=CLIENT_TIMEOUT_S,
        env=given,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    return done.stdout


def run_script(name: str, *arguments: str) -> dict[str, object]:
    """Run one of the scripts in the clients' environment and return what it saw."""
    return _last_object(run_client(client_program("python"), SCRIPTS / name, *arguments))


def run_node_script(name: str, folder: Path, *arguments: str) -> dict[str, object]:
    """Run one of the Node scripts, laid where it finds the installed packages."""
    (folder / "node_modules").symlink_to(asset("clients") / "node" / "node_modules")
    script = shutil.copy(NODE_SCRIPTS / name, folder)
    return _last_object(run_client(system_program("node"), script, *arguments))


def _last_object(output: str) -> dict[str, object]:
    told = json.loads(output.strip().splitlines()[-1])
    assert isinstance(told, dict)
    return told
