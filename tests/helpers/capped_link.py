"""A worker on a machine of its own behind a link of limited speed: a network namespace, a pair of
virtual interfaces, and a token bucket at each end. Needs root and iproute2.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

from app.rpc_backend.wire.constants import DEFAULT_PORT
from tests.helpers.eventually import eventually
from tests.helpers.process import running

_NETWORK = "10.213.{}"
_FIRST = -15
_numbers = count(1)


def require_links() -> None:
    """Skip the test where links cannot be made."""
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"links of limited speed need root, ip and tc; missing: {missing or 'root'}")


@contextmanager
def worker_behind_link(index: int, cache: Path, rate: str = "1gbit") -> Iterator[str]:
    """Run our worker with a cache behind link number `index`, and yield its endpoint."""
    host, here = (f"{_NETWORK.format(index)}.{n}" for n in (2, 1))
    with ExitStack() as stack:
        namespace = stack.enter_context(_link(here, host, rate))
        program = (sys.executable, "-m", "app.cli.rpc_server", "-H", host, "-t", "1")
        command = ["ip", "netns", "exec", namespace, *program, "-c", str(cache)]
        worker = stack.enter_context(running(["nice", "-n", str(_FIRST), *command]))
        _put_session(worker.process.pid, _FIRST)
        eventually(lambda: worker.process.poll() is not None or _listens(host))
        assert worker.process.poll() is None, worker.output
        yield f"{host}:{DEFAULT_PORT}"


@contextmanager
def first_in_line() -> Iterator[None]:
    """Let this process and the threads that it starts run before what else this machine does, as
    the workers here do; otherwise a load would show who else is busy, and not its link.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, _FIRST)
    _put_session(os.getpid(), _FIRST)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
        _put_session(os.getpid(), 0)


def _put_session(pid: int, nice: int) -> None:
    """Weigh the session of `pid` against others, where Linux does so: the file is empty, and
    refuses to be written, for a process that has been in no session since the machine started.
    """
    autogroup = Path(f"/proc/{pid}/autogroup")
    if autogroup.exists() and autogroup.read_text():
        autogroup.write_text(str(nice))


@contextmanager
def _link(here: str, there: str, rate: str) -> Iterator[str]:
    # Interfaces have names of at most 15 characters, and stay for a moment after their end.
    namespace = f"ls{os.getpid() % 1_000_000}-{next(_numbers) % 1000}"
    near, far = f"{namespace}a", f"{namespace}b"
    inside = ("ip", "netns", "exec", namespace)
    _run("ip", "netns", "add", namespace)
    try:
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", namespace)
        for prefix, name, address in (((), near, here), (inside, far, there)):
            _run(*prefix, "ip", "address", "add", f"{address}/24", "dev", name)
            _run(*prefix, "ip", "link", "set", name, "up")
            bucket = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
            _run(*prefix, "tc", "qdisc", "add", "dev", name, "root", *bucket)
        yield namespace
    finally:
        # Its end of the pair goes with it, and the other end with that.
        _run("ip", "netns", "delete", namespace)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _listens(host: str) -> bool:
    with socket.socket() as sock:
        sock.settimeout(1)
        return sock.connect_ex((host, DEFAULT_PORT)) == 0
