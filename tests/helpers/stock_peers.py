"""Stock llama.cpp on the other end of the wire: workers to connect to, clients to serve.

Version 8 is a prebuilt library that runs in a root of its own, version 7 is built from source. Both
run on one CPU thread, greedily.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from tests.helpers.assets import PROJECT_ROOT, asset
from tests.helpers.eventually import eventually
from tests.helpers.process import free_port, listens, running

_LIBRARIES_V8: Final = "/opt/peer/llama_cpp_py_sync"


@contextmanager
def stock_worker(version: int) -> Iterator[int]:
    """Run a stock worker on its CPU and yield its port."""
    port = free_port()
    if version == 8:
        command = [str(asset("peer_v8") / "worker"), f"127.0.0.1:{port}", "1"]
    else:
        server = asset("peer_v7") / "bin" / "ggml-rpc-server"
        command = [str(server), "-p", str(port), "-t", "1"]
    with running(command) as worker:
        eventually(lambda: worker.process.poll() is not None or listens(port))
        assert worker.process.poll() is None, worker.output
        yield port


def stock_ggml(version: int, *worker_ports: int) -> dict[str, Any]:
    """Drive the RPC client library of stock llama.cpp through every command that it can send (see
    the script), towards one worker or two, and return what came back.
    """
    endpoints = [f"127.0.0.1:{port}" for port in worker_ports]
    if version == 8:
        command = [*_python_v8(), _LIBRARIES_V8, *endpoints]
    else:
        command = [sys.executable, "-", str(asset("peer_v7") / "bin"), *endpoints]
    return _said(command, "stock_ggml.py")


def stock_split_text(
    version: int, model: Path, worker_ports: Sequence[int], prompt: str, n_predict: int
) -> str:
    """Let the stock client complete a prompt with every matrix cut over the workers. In version 8
    they add up among themselves, in version 7 the client does it for them.
    """
    endpoints = ",".join(f"127.0.0.1:{port}" for port in worker_ports)
    if version == 7:
        flags = ("--rpc", endpoints, "-ngl", "99", "-sm", "tensor", "-fa", "on")
        return _texts_v7(model, flags, [prompt], n_predict)[0]
    # Its wrapper copies models to where it can read them.
    inside = asset("peer_v8") / "root" / "models" / model.name
    if not inside.exists() or inside.stat().st_size != model.stat().st_size:
        inside.parent.mkdir(exist_ok=True)
        # Other runs may use the same folder at the same time.
        copy = inside.with_name(f"{inside.name}.{os.getpid()}")
        shutil.copyfile(model, copy)
        copy.replace(inside)
    arguments = [f"/models/{model.name}", endpoints, prompt, str(n_predict)]
    return str(_said([*_python_v8(), *arguments], "stock_split.py")["text"])


def _python_v8() -> list[str]:
    """The version 8 peer's own Python, which reads a script from its input."""
    return ["chroot", str(asset("peer_v8") / "root"), "python3", "-u", "-"]


def _said(command: Sequence[str], script: str) -> dict[str, Any]:
    """Run a script of tests/interop and return the line of JSON that it prints."""
    path = PROJECT_ROOT / "tests" / "interop" / script
    done = subprocess.run(
        command,
        input=path.read_text("utf-8"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def stock_text_v8(model: Path, worker_port: int | None, prompt: str, n_predict: int) -> str:
    """Let the stock client of version 8 complete a prompt, on a worker or on its own."""
    endpoint = "-" if worker_port is None else f"127.0.0.1:{worker_port}"
    client = asset("peer_v8") / "client"
    done = subprocess.run(
        [str(client), str(model), endpoint, prompt, str(n_predict)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-2000:]
    text = json.loads(lines[-1])["text"]
    assert isinstance(text, str)
    return text


def stock_texts_v7(
    model: Path, worker_port: int | None, prompts: list[str], n_predict: int
) -> list[str]:
    """Let llama-server of version 7 complete prompts, on a worker or on its own."""
    flags = () if worker_port is None else ("--rpc", f"127.0.0.1:{worker_port}", "-ngl", "99")
    return _texts_v7(model, flags, prompts, n_predict)


def _texts_v7(
    model: Path, flags: Sequence[str], prompts: Sequence[str], n_predict: int
) -> list[str]:
    port = free_port()
    server = asset("peer_v7") / "bin" / "llama-server"
    command = [str(server), "-m", str(model), "--port", str(port), "-t", "1", "-c", "512"]
    command += ["-np", "1", "--no-warmup", "--no-webui", *flags]
    url = f"http://127.0.0.1:{port}"

    with running(command) as process, httpx.Client(base_url=url, timeout=240) as client:

        def is_ready() -> bool:
            assert process.process.poll() is None, process.output[-2000:]
            return listens(port) and client.get("/health").status_code == 200

        eventually(is_ready, 120)
        return [_complete(client, prompt, n_predict) for prompt in prompts]


def _complete(client: httpx.Client, prompt: str, n_predict: int) -> str:
    body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "cache_prompt": False}
    reply = client.post("/completion", json=body)
    assert reply.status_code == 200, reply.text
    text = reply.json()["content"]
    assert isinstance(text, str)
    return text
