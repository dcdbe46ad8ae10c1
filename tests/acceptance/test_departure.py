"""A client that leaves frees its slot in under a second: in the queue, in prefill and in decode.

On this machine's CPU and over two workers; a step of prefill is the longest that nothing can
interrupt.
"""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from tests.helpers.assets import asset
from tests.helpers.eventually import eventually
from tests.helpers.server_process import Server, own_workers, running_server

DEPARTURE_LIMIT_S = 1.0
TRIES = 5
SHORT = "Once upon a time"
LONG = "word " * 1900

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", params=[0, 2], ids=["local", "two workers"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """SmolLM2 with two slots."""
    arguments = ["-m", str(asset("smollm2")), "-c", "4096", "-np", "2", "--metrics"]
    arguments += ["-ub", "128", "-t", "1", "--no-cache-prompt"]
    with own_workers(request.param) as endpoints:
        if endpoints:
            arguments += ["--rpc", ",".join(endpoints), "-ngl", "99"]
        with running_server(*arguments) as running:
            yield running


def decoded(server: Server) -> list[int]:
    """For each busy slot, the number of tokens that it has generated."""
    slots = httpx.get(f"{server.url}/slots", timeout=60).json()
    return [slot["next_token"][0]["n_decoded"] for slot in slots if slot["is_processing"]]


def n_busy(server: Server) -> int:
    return len(decoded(server))


def n_decoding(server: Server) -> int:
    return sum(n > 0 for n in decoded(server))


def n_in_prefill(server: Server) -> int:
    return decoded(server).count(0)


def n_queued(server: Server) -> int:
    """Requests that wait for a slot."""
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return int(float(values["llamacpp:requests_deferred"]))


@contextmanager
def client(server: Server, prompt: str, *, stream: bool) -> Iterator[None]:
    """Ask without reading the answer, and leave at the end."""
    body = {"prompt": prompt, "n_predict": 2000, "stream": stream, "ignore_eos": True}
    data = json.dumps(body).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0)) as sock:
        sock.sendall(head.encode() + data)
        yield


def soon(condition: Callable[[], bool]) -> bool:
    """Wait for what must come, and return whether it came in time."""
    started = time.monotonic()
    eventually(condition)
    return time.monotonic() - started < DEPARTURE_LIMIT_S


def is_idle(server: Server) -> bool:
    return n_busy(server) == 0 and n_queued(server) == 0


def succeeds(attempt: Callable[[], bool]) -> bool:
    """Try again if somebody else had the processors."""
    return any(attempt() for _ in range(TRIES))


@pytest.fixture(autouse=True)
def idle(server: Server) -> None:
    eventually(lambda: is_idle(server))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_in_decode(server: Server, stream: bool) -> None:
    def attempt() -> bool:
        with client(server, SHORT, stream=stream):
            eventually(lambda: n_decoding(server) == 1)
        return soon(lambda: n_busy(server) == 0)

    assert succeeds(attempt)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_in_prefill(server: Server, stream: bool) -> None:
    def attempt() -> bool:
        with client(server, LONG, stream=stream):
            eventually(lambda: n_in_prefill(server) == 1)
        return soon(lambda: n_busy(server) == 0)

    assert succeeds(attempt)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_in_the_queue(server: Server, stream: bool) -> None:
    def attempt() -> bool:
        with client(server, SHORT, stream=True), client(server, SHORT, stream=True):
            eventually(lambda: n_decoding(server) == 2)
            with client(server, SHORT, stream=stream):
                eventually(lambda: n_queued(server) == 1)
            has_left = soon(lambda: n_queued(server) == 0)
            assert n_decoding(server) == 2
        return soon(lambda: n_busy(server) == 0) and has_left

    assert succeeds(attempt)


def test_a_freed_slot_is_taken_by_who_waits(server: Server) -> None:
    def attempt() -> bool:
        with ExitStack() as first, client(server, SHORT, stream=True):
            first.enter_context(client(server, SHORT, stream=True))
            eventually(lambda: n_decoding(server) == 2)
            with client(server, SHORT, stream=True):
                eventually(lambda: n_queued(server) == 1)
                first.close()
                is_taken = soon(lambda: n_queued(server) == 0)
                eventually(lambda: n_decoding(server) == 2)
        eventually(lambda: is_idle(server))
        return is_taken

    assert succeeds(attempt)
