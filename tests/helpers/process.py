"""Programs started by tests: killed at the end, whatever happens."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import SystemRandom
from typing import Final

from tests.helpers.assets import PROJECT_ROOT
from tests.helpers.eventually import PATIENCE_S, eventually

_FIRST_PORT: Final = 20_000
_MOST_TRIES: Final = 100
# Runs beside each other begin at different ones.
_ports = count(SystemRandom().randrange(1 << 20))


class Running:
    """A process whose output is read after or while it runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def output(self) -> str:
        """Everything that it has written so far."""
        return self._log.read_text(errors="replace")

    def terminate(self, timeout_s: float = PATIENCE_S) -> int:
        """Ask it to end and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


@contextmanager
def running(command: Sequence[str]) -> Iterator[Running]:
    """Start a program in a process group of its own and kill the group at the end."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "output"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=PROJECT_ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        try:
            yield Running(process, log)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)


def free_port() -> int:
    """Return a port that nobody listens on, another one each time. It is none of those that the
    system gives to whoever asks for any, so nobody gets it before the test or its child takes it.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(_MOST_TRIES):
        port = _FIRST_PORT + next(_ports) % max(lowest - _FIRST_PORT, 1000)
        with socket.socket() as probe:
            # As a server does it; otherwise a port whose last connection has just ended is taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
                probe.listen()
            except OSError:
                continue
        return port
    raise AssertionError(f"{_MOST_TRIES} ports in a row are taken")


def listens(port: int) -> bool:
    """Whether something accepts connections on loopback."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def own_worker(*flags: str) -> Iterator[tuple[Running, int]]:
    """Run our llama-rpc-server on the CPU; yield it and its port when it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "app.cli.rpc_server", "-p", str(port), "-t", "1", *flags]
    with running(command) as worker:
        eventually(lambda: worker.process.poll() is not None or listens(port))
        assert worker.process.poll() is None, worker.output
        yield worker, port
