"""`llama-serve` as a process of its own, as a user starts it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx

from tests.helpers.eventually import eventually
from tests.helpers.proc import peak_rss_bytes
from tests.helpers.process import Running, free_port, listens, own_worker, running

START_TIMEOUT_S = 60
READY_TIMEOUT_S = 120
LLAMA_SERVE = (sys.executable, "-c", "from app.cli.serve import main; raise SystemExit(main())")


@dataclass(frozen=True)
class Server:
    """A running server and where it listens."""

    url: str
    running: Running

    def peak_rss_bytes(self) -> int:
        """The most memory that the process has had resident (VmHWM)."""
        return peak_rss_bytes(self.running.process.pid)

    def is_ready(self) -> bool:
        """Whether the model is loaded; until then /health must say 503."""
        assert self.running.process.poll() is None, self.running.output
        status = httpx.get(f"{self.url}/health", timeout=60).status_code
        assert status in (200, 503), self.running.output
        return status == 200


@contextmanager
def running_server(*arguments: str, port: int | None = None) -> Iterator[Server]:
    """Run `llama-serve` with these arguments until the block ends, on a free port by default."""
    port = port or free_port()
    with running([*LLAMA_SERVE, "--port", str(port), *arguments]) as process:
        eventually(lambda: process.process.poll() is not None or listens(port), START_TIMEOUT_S)
        server = Server(f"http://127.0.0.1:{port}", process)
        eventually(server.is_ready, READY_TIMEOUT_S)
        yield server


def run_server_to_its_end(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `llama-serve` when it is expected to refuse."""
    command = [*LLAMA_SERVE, "--port", str(free_port()), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def own_workers(n: int) -> Iterator[list[str]]:
    """Run several of our workers and yield their endpoints."""
    with ExitStack() as stack:
        ports = [stack.enter_context(own_worker())[1] for _ in range(n)]
        yield [f"127.0.0.1:{port}" for port in ports]
