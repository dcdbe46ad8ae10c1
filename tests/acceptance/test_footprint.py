"""What a run costs besides computing: seconds from a cold process to the port and to ready, and
memory of the processes that hold the model.

The bounds on memory are the project's own: the file, the KV cache and 300 MB. Its bounds on time
are 1 s to the port and 4 s to ready (SmolLM2); a slower machine gets three times as long. The time
in which others had the processor does not count.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.acceptance.measure import Record
from tests.helpers.assets import asset
from tests.helpers.eventually import eventually
from tests.helpers.proc import peak_rss_bytes, queued_seconds, threads
from tests.helpers.process import Running, free_port, listens, own_worker, running
from tests.helpers.server_process import LLAMA_SERVE, Server, running_server

WORKER_ALLOWANCE_BYTES = 300_000_000
HOST_ALLOWANCE_BYTES = 600_000_000
PORT_S, READY_S, SLOW_MACHINE = 1.0, 4.0, 3.0

N_CTX, N_PROMPT, N_PREDICT = 2048, 512, 32
F16_BYTES = 2
KV_ROWS = {"smollm2": 30 * 2 * 3 * 64, "gemma3": 18 * 2 * 1 * 256}
"""Elements of keys and values per token: layers, two, KV heads, elements of a head."""

pytestmark = pytest.mark.model
models = pytest.mark.parametrize("model", ["smollm2", "gemma3"])


def bound_bytes(model: str) -> int:
    """File, KV cache of the whole context and the allowance."""
    kv = KV_ROWS[model] * F16_BYTES * N_CTX
    return asset(model).stat().st_size + kv + WORKER_ALLOWANCE_BYTES


def with_children(pid: int) -> Iterator[int]:
    """A process and those that it has started."""
    yield pid
    for thread in threads(pid):
        with suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield from with_children(int(child))


def peak_bytes(process: Running) -> int:
    """The most memory that a process and its children have had resident, each at its worst."""
    return sum(map(peak_rss_bytes, with_children(process.process.pid)))


def use(server: Server) -> None:
    """A prompt of 512 tokens, a generation, and a conversation, which starts the template's
    process.
    """
    with httpx.Client(base_url=server.url, timeout=120) as client:
        text = "word " * N_PROMPT
        tokens = client.post("/tokenize", json={"content": text}).json()["tokens"][:N_PROMPT]
        body = {"prompt": tokens, "n_predict": N_PREDICT, "ignore_eos": True}
        timings = client.post("/completion", json=body).json()["timings"]
        assert (timings["prompt_n"], timings["predicted_n"]) == (N_PROMPT, N_PREDICT)
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        assert client.post("/v1/chat/completions", json=chat).status_code == 200


def arguments(model: str) -> tuple[str, ...]:
    return ("-m", str(asset(model)), "-c", str(N_CTX), "-np", "1", "-t", "1")


@models
def test_a_server_takes_the_file_the_cache_and_little_more(
    model: str, record_property: Record
) -> None:
    with running_server(*arguments(model)) as server:
        use(server)
        peak = peak_bytes(server.running)
    record_property(f"{model} peak RSS bytes of a local server", peak)
    record_property(f"{model} bytes allowed", bound_bytes(model))
    assert peak < bound_bytes(model)


@models
def test_a_worker_takes_the_file_the_cache_and_little_more(
    model: str, record_property: Record
) -> None:
    with own_worker("-d", "CPU") as (worker, port):
        rpc = ("--rpc", f"127.0.0.1:{port}", "-ngl", "99")
        with running_server(*arguments(model), *rpc) as server:
            use(server)
            peak, host = peak_bytes(worker), peak_bytes(server.running)
    record_property(f"{model} peak RSS bytes of a worker", peak)
    record_property(f"{model} peak RSS bytes of its main host", host)
    assert peak < bound_bytes(model)
    assert host < asset(model).stat().st_size + HOST_ALLOWANCE_BYTES


def test_a_server_listens_and_is_ready_soon(record_property: Record) -> None:
    port = free_port()
    start = time.monotonic()
    with running([*LLAMA_SERVE, "--port", str(port), *arguments("smollm2")]) as process:
        eventually(lambda: process.process.poll() is not None or listens(port))
        to_port = time.monotonic() - start - queued_seconds(process.process.pid)
        assert process.process.poll() is None, process.output
        eventually(Server(f"http://127.0.0.1:{port}", process).is_ready)
        to_ready = time.monotonic() - start - queued_seconds(process.process.pid)
    record_property("seconds to the server's port", to_port)
    record_property("seconds to ready (smollm2)", to_ready)
    assert to_port < SLOW_MACHINE * PORT_S
    assert to_ready < SLOW_MACHINE * READY_S


def test_a_worker_listens_soon(record_property: Record) -> None:
    start = time.monotonic()
    with own_worker("-d", "CPU") as (worker, _):
        to_port = time.monotonic() - start - queued_seconds(worker.process.pid)
    record_property("seconds to the worker's port", to_port)
    assert to_port < SLOW_MACHINE * PORT_S
