"""RPC workers as processes of their own, ours and stock llama.cpp's, on free loopback ports."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 60.0
POLL_S = 0.05


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_until_it_listens(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"it ended with {process.returncode}: {log.read_text()}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(POLL_S)
    raise AssertionError(f"it did not listen within {START_TIMEOUT_S} s: {log.read_text()}")


@dataclass(frozen=True)
class RunningProcess:
    """A process and the `host:port` that it listens on."""

    endpoint: str
    pid: int


@contextmanager
def process_on_port(command: Sequence[str], port: int, log: Path) -> Iterator[RunningProcess]:
    """Run a server until the block ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_until_it_listens(process, port, log)
        yield RunningProcess(f"127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def our_worker(folder: Path, *arguments: str) -> Iterator[str]:
    """One `llama-rpc-server` with one thread."""
    port = free_port()
    command = [sys.executable, "-m", "app.cli.rpc_server", "-p", str(port), "-t", "1", *arguments]
    with process_on_port(command, port, folder / f"worker-{port}.log") as process:
        yield process.endpoint


@contextmanager
def stock_worker(peer: Path, folder: Path) -> Iterator[str]:
    """One stock worker of protocol 8 with one thread; `peer` is `asset("peer_v8")`."""
    port = free_port()
    command = [str(peer / "worker"), f"127.0.0.1:{port}", "1"]
    with process_on_port(command, port, folder / f"stock-{port}.log") as process:
        yield process.endpoint


@contextmanager
def our_workers(n: int, folder: Path) -> Iterator[list[str]]:
    """Several of our workers."""
    with ExitStack() as stack:
        yield [stack.enter_context(our_worker(folder)) for _ in range(n)]
