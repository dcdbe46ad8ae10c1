"""`llama-serve` as a process of its own, as a user starts it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.helpers.worker_processes import free_port, process_on_port

READY_TIMEOUT_S = 90.0
POLL_S = 0.1
LLAMA_SERVE = (sys.executable, "-c", "from app.cli.serve import main; raise SystemExit(main())")


@dataclass(frozen=True)
class Server:
    """A running server: where it listens, its process id, its log."""

    url: str
    pid: int
    log: Path

    def peak_rss_bytes(self) -> int:
        """The most memory that the process has had resident (VmHWM)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) << 10


def wait_until_ready(url: str, log: Path) -> None:
    """Poll /health; 503 means that the model is loading."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        answer = httpx.get(f"{url}/health", timeout=10)
        if answer.status_code == 200:
            return
        assert answer.status_code == 503, answer.text
        time.sleep(POLL_S)
    raise AssertionError(f"not ready within {READY_TIMEOUT_S} s: {log.read_text()}")


@contextmanager
def running_server(folder: Path, *arguments: str) -> Iterator[Server]:
    """Run `llama-serve` with these arguments on a free port until the block ends."""
    port = free_port()
    log = folder / f"server-{port}.log"
    command = [*LLAMA_SERVE, "--port", str(port), *arguments]
    with process_on_port(command, port, log) as process:
        url = f"http://{process.endpoint}"
        wait_until_ready(url, log)
        yield Server(url, process.pid, log)


def run_server_to_its_end(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `llama-serve` when it is expected to refuse."""
    command = [*LLAMA_SERVE, "--port", str(free_port()), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
