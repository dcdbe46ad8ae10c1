"""A worker that dies: its requests end with its name, the server stays and comes back with it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.helpers.assets import asset
from tests.helpers.eventually import eventually
from tests.helpers.process import Running, free_port, listens, own_worker, running
from tests.helpers.server_process import running_server

pytestmark = pytest.mark.model


@contextmanager
def worker_on(port: int) -> Iterator[Running]:
    """Our worker on a port of the caller's choice."""
    command = [sys.executable, "-m", "app.cli.rpc_server", "-p", str(port), "-t", "1"]
    with running(command) as worker:
        eventually(lambda: listens(port))
        yield worker


def test_a_lost_worker_is_named_and_taken_back() -> None:
    port = free_port()
    lost = f"127.0.0.1:{port}"
    with own_worker() as (_, other):
        rpc = f"127.0.0.1:{other},{lost}"
        arguments = ["-m", str(asset("smollm2")), "--rpc", rpc, "-c", "2048", "-np", "1"]
        with worker_on(port) as worker, running_server(*arguments) as server:
            body = {"prompt": "Once", "n_predict": 1500, "stream": True, "ignore_eos": True}
            url = f"{server.url}/completion"
            with httpx.stream("POST", url, json=body, timeout=60) as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith("data: ")
                worker.process.kill()
                rest = [line for line in lines if line]
            assert '"error"' in rest[-1]
            assert lost in rest[-1]
            health = httpx.get(f"{server.url}/health", timeout=60)
            assert health.status_code == 503
            assert lost in health.text
            refused = httpx.post(url, json={"prompt": "Once", "n_predict": 1}, timeout=60)
            assert refused.status_code == 503
            with worker_on(port):
                eventually(server.is_ready)
                again = httpx.post(url, json={"prompt": "Once", "n_predict": 2}, timeout=60)
                assert again.status_code == 200
                assert again.json()["tokens_predicted"] == 2
