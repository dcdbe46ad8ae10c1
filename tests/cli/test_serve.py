"""llama-serve as a process: what it prints, how it starts, fails and ends."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from app.version import __version__
from tests.helpers.assets import asset
from tests.helpers.fake_worker import fake_worker, introduce, wait_for_end
from tests.helpers.process import free_port
from tests.helpers.server_process import LLAMA_SERVE, running_server

START_S = 60.0
STOP_S = 60.0


@dataclass(frozen=True)
class Running:
    """A server and the lines that it prints on stderr."""

    process: subprocess.Popen[str]

    def line_with(self, text: str) -> str:
        """Return the first line from now on that has the text; fail when stderr ends."""
        assert self.process.stderr is not None
        seen: list[str] = []
        for line in self.process.stderr:
            seen.append(line)
            if text in line:
                return line.strip()
        raise AssertionError("".join(seen))

    def stop(self, number: signal.Signals) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(STOP_S)


def command(*args: str) -> list[str]:
    start = "import sys; from app.cli.serve import main; sys.exit(main())"
    return [sys.executable, "-c", start, *args]


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args), capture_output=True, text=True, timeout=START_S, env=environment()
    )


@contextlib.contextmanager
def running(*args: str) -> Iterator[Running]:
    process = subprocess.Popen(
        command("--port", "0", "--api-key", "k", *args),
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        yield Running(process)
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.fixture
def silent_worker() -> Iterator[str]:
    """A worker that says what it has and then never a word: a load that does not end."""

    def script(sock: socket.socket) -> None:
        introduce(sock)
        wait_for_end(sock)

    with fake_worker(script) as endpoint:
        yield endpoint


def small_model() -> list[str]:
    return ["-m", str(asset("stories260k")), "-c", "256", "-np", "1", "--no-warmup"]


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert __version__ in done.stdout


def test_help() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "--tensor-split" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--no-such-flag",), "error: invalid argument: --no-such-flag"),
        (("-m", "x.gguf", "--host", "192.0.2.1"), "error: cannot listen on 192.0.2.1"),
        (("--lora", "x"), "error: --lora is not supported"),
    ],
)
def test_what_cannot_be_started_ends_with_one_line_and_status_one(
    args: tuple[str, ...], message: str
) -> None:
    done = run(*args)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(message)


def test_without_a_model_a_server_says_that_it_has_none() -> None:
    with running_server() as server:
        assert httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"] == []
        asked = {"messages": [{"role": "user", "content": "a"}]}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=60)
        assert answer.status_code == 400
        assert "no model" in answer.json()["error"]["message"]
        assert "no model: name a file" in server.running.output


def test_a_missing_model_ends_the_server(tmp_path: Path) -> None:
    done = run("--port", "0", "-m", str(tmp_path / "none.gguf"))
    assert done.returncode == 1
    assert "error: the model cannot be loaded" in done.stderr
    assert "none.gguf" in done.stderr


def test_a_file_that_is_no_model_ends_the_server(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 100)
    done = run("--port", "0", "-m", str(path))
    assert done.returncode == 1
    assert "bad.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_absent_worker_ends_the_server() -> None:
    port = free_port()
    done = run("--port", "0", "--rpc", f"127.0.0.1:{port}", *small_model())
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_load(silent_worker: str, number: signal.Signals) -> None:
    with running("--rpc", silent_worker, *small_model()) as server:
        url = server.line_with("starting on").rpartition(" ")[2]
        answer = httpx.get(f"{url}/health", timeout=START_S)
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "Loading model"
        assert server.stop(number) == 0


def test_a_served_model_answers_and_a_signal_ends_it() -> None:
    with running(*small_model()) as server:
        url = server.line_with("server is listening on").rpartition(" ")[2]
        with httpx.Client(base_url=url, timeout=START_S) as client:
            assert client.get("/health").json() == {"status": "ok"}
            body = {"prompt": "Once upon", "n_predict": 4}
            answer = client.post("/completion", json=body, headers={"X-Api-Key": "k"})
            assert answer.json()["tokens_predicted"] == 4
        assert server.stop(signal.SIGTERM) == 0


def test_a_signal_ends_a_running_stream() -> None:
    with running(*small_model()) as server:
        url = server.line_with("server is listening on").rpartition(" ")[2]
        body = {"prompt": "Once", "n_predict": -1, "ignore_eos": True, "stream": True}
        headers = {"X-Api-Key": "k"}
        with (
            httpx.Client(base_url=url, timeout=START_S) as client,
            client.stream("POST", "/completion", json=body, headers=headers) as stream,
        ):
            next(stream.iter_text())
            assert server.stop(signal.SIGTERM) == 0


def test_a_unix_socket_serves(silent_worker: str, tmp_path: Path) -> None:
    path = tmp_path / "llama.sock"
    with running("--rpc", silent_worker, "--host", str(path), *small_model()) as server:
        server.line_with("starting on unix://")
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=START_S) as client:
            assert client.get("http://localhost/health").status_code == 503
        assert server.stop(signal.SIGTERM) == 0
    assert not path.exists()


def test_https_serves(silent_worker: str, tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=x"
    where = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    made = subprocess.run(["openssl", *make.split(), *where], capture_output=True)
    assert made.returncode == 0, made.stderr
    args = ("--ssl-key-file", str(key), "--ssl-cert-file", str(cert), "--rpc", silent_worker)
    with running(*args, *small_model()) as server:
        url = server.line_with("starting on").rpartition(" ")[2]
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=cert)
        assert httpx.get(f"{url}/health", verify=context, timeout=START_S).status_code == 503


def test_a_reader_of_the_help_that_leaves_is_no_error_to_see() -> None:
    command = [*LLAMA_SERVE, "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
