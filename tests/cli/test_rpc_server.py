"""llama-rpc-server: flags, environment, and a life from start to SIGTERM."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.rpc_server import parse_options
from app.cli.worker_storage import default_cache_folder
from app.devices.base import BufferUsage
from app.errors import ConfigError, DeviceLostError
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.wire.constants import MIN_HASHED_BYTES, Cmd
from tests.helpers.assets import PROJECT_ROOT
from tests.helpers.eventually import eventually
from tests.helpers.fake_worker import read
from tests.helpers.process import free_port, own_worker
from tests.helpers.rpc_frames import frame


def test_the_defaults_are_those_of_the_stock_worker() -> None:
    options = parse_options([], {})
    assert (options.host, options.port) == ("127.0.0.1", 50052)
    assert options.devices is None
    assert options.threads is None
    assert options.storage.cache is None
    assert (options.version, options.debug) == (8, 0)


def test_every_flag_is_read() -> None:
    argv = [
        "-H",
        "0.0.0.0",
        "-p",
        "7",
        "-d",
        "CUDA0,CPU",
        "-t",
        "3",
        "-c",
        "/x/y",
        "--protocol",
        "7",
    ]
    options = parse_options(argv, {"GGML_RPC_DEBUG": "2", "GGML_RPC_CACHE_MIN_SIZE": "99"})
    assert (options.host, options.port, options.threads) == ("0.0.0.0", 7, 3)
    assert options.devices == ("CUDA0", "CPU")
    assert options.storage.cache is not None
    assert (options.storage.cache.folder, options.storage.cache.min_bytes) == (Path("/x/y"), 99)
    assert (options.version, options.debug) == (7, 2)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"LLAMA_CACHE": "/l", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/l/rpc"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/llama.cpp/rpc"),
    ],
)
def test_the_cache_is_where_the_stock_worker_has_it(environ: dict[str, str], folder: str) -> None:
    assert default_cache_folder(environ) == Path(folder)
    options = parse_options(["-c"], environ)
    assert options.storage.cache is not None
    assert options.storage.cache.folder == Path(folder)
    assert options.storage.cache.min_bytes == MIN_HASHED_BYTES


def test_own_models_are_files_and_folders_that_commas_part_and_their_hashes_are_cached() -> None:
    argv = ["--models", "/m,/n/a.gguf", "--models", "/o"]
    storage = parse_options(argv, {"LLAMA_SERVE_CACHE": "/c"}).storage
    assert storage.models == (Path("/m"), Path("/n/a.gguf"), Path("/o"))
    assert storage.hash_folder == Path("/c/hashes")


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has its own place for caches")
def test_without_either_variable_the_cache_is_at_home() -> None:
    assert default_cache_folder({"HOME": "/h"}) == Path("/h/.cache/llama.cpp/rpc")


@pytest.mark.parametrize(
    ("text", "level"), [("", 0), ("0", 0), ("1", 1), ("3", 3), ("9", 3), ("yes", 1)]
)
def test_the_debug_level_is_forgiving(text: str, level: int) -> None:
    assert parse_options([], {"GGML_RPC_DEBUG": text}).debug == level


def test_a_wrong_cache_size_is_quoted() -> None:
    with pytest.raises(ConfigError, match="GGML_RPC_CACHE_MIN_SIZE 'much': expected an integer"):
        parse_options(["-c"], {"GGML_RPC_CACHE_MIN_SIZE": "much"})


@pytest.mark.parametrize(
    "argv",
    [
        ["-p", "65536"],
        ["-p", "x"],
        ["-p", "-1"],
        ["-t", "0"],
        ["-t", "1.5"],
        ["-t", "9" * 5000],
        ["--protocol", "6"],
        ["--bogus"],
    ],
    ids=lambda argv: " ".join(argv)[:20],
)
def test_wrong_flags_exit_with_a_usage_message(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(argv, {})
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "usage: llama-rpc-server" in said
    assert " value: " not in said


def test_the_page_about_workers_names_every_flag_and_variable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--help"], {})
    pattern = r"--[a-z][a-z-]+|[A-Z]+_[A-Z_]+(?==)"
    names = set(re.findall(pattern, capsys.readouterr().out)) - {"--help", "--rpc-secret-file"}
    page = (PROJECT_ROOT / "docs" / "workers.md").read_text("utf-8")
    assert "GGML_RPC_DEBUG" in names
    assert [name for name in sorted(names) if name not in page] == []


def test_it_serves_and_stops_on_a_signal_with_a_client_connected() -> None:
    with own_worker("--protocol", "7") as (worker, port):
        (device,) = open_workers([f"127.0.0.1:{port}"])
        device.alloc(1 << 20, BufferUsage.ANY)
        device.synchronize()
        assert device.connection.version == (7, 0, 0)
        assert worker.terminate() == 0
        device.close()
        output = worker.output
    for part in (
        "RPC server v7.0.0",
        f"127.0.0.1:{port}",
        "local cache    : n/a",
        "own models     : n/a",
        "CPU: ",
    ):
        assert part in output
    assert "stopping on SIGTERM" in output or "the worker stops" in output


def test_what_it_was_told_reaches_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on loopback, debugging at the second level, and with a list that leaves this host out."""
    monkeypatch.setenv("GGML_RPC_DEBUG", "2")
    with own_worker("-H", "0.0.0.0", "--allow", "127.0.0.1") as (worker, port):
        (device,) = open_workers([f"127.0.0.1:{port}"])
        device.alloc(4096, BufferUsage.ANY)
        device.close()
        eventually(lambda: "closed by the client" in worker.output)
        output = worker.output
    assert "WARNING: listening on 0.0.0.0" in output
    assert "this port from 127.0.0.1/32 can" in output
    assert "clients from   : 127.0.0.1/32\n" in output
    assert "ALLOC_BUFFER AllocBuffer(device=0, size=4096)\n" in output
    with own_worker("--allow", "192.0.2.1") as (worker, port):
        with pytest.raises(DeviceLostError):
            open_workers([f"127.0.0.1:{port}"])
        eventually(lambda: "not in --allow" in worker.output)


@pytest.mark.parametrize("quiet", [False, True])
def test_offers_of_rdma_are_told_unless_it_is_turned_off(
    quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if quiet:
        monkeypatch.setenv("GGML_RPC_NO_RDMA", "1")
    with own_worker() as (worker, port):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(frame(Cmd.HELLO, b"\1" * 24))
            assert read(sock, 36)[12:] == bytes(24)
        eventually(lambda: "stock client" in worker.output)
        assert ("offers RDMA" in worker.output) != quiet


def run(*flags: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "app.cli.rpc_server", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=PROJECT_ROOT,
        check=False,
    )


def test_a_busy_port_is_said_before_anything_else_is_done() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("-p", str(port), "-d", "NOSUCH")
    assert done.returncode == 1
    assert f"127.0.0.1:{port}: Address already in use" in done.stderr


def test_an_unknown_device_lists_the_known_ones() -> None:
    done = run("-p", str(free_port()), "-d", "NOSUCH")
    assert done.returncode == 1
    assert "'NOSUCH'" in done.stderr
    assert "CPU" in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500", 500 << 20), ("500M", 500 << 20), ("20g", 20 << 30), ("1TiB", 1 << 40), ("0", None)],
)
def test_the_limit_of_the_cache(text: str, expected: int | None) -> None:
    options = parse_options(["-c", "/x", "--cache-size", text], {})
    assert options.storage.cache is not None
    assert options.storage.cache.max_bytes == expected


@pytest.mark.parametrize("text", ["-1", "much", "5 G", "1e9", "٥G"])
def test_a_limit_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        parse_options(["-c", "/x", "--cache-size", text], {})


@pytest.mark.parametrize("level", ["portable", "reference"])
def test_the_list_of_operations_survives_a_reader_that_has_enough(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the list fits into a buffer, so that nothing is written before the end, or not."""
    monkeypatch.setenv("LLAMA_SERVE_CPU_LEVEL", level)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    command = [sys.executable, "-m", "app.cli.rpc_server", "--list-ops", "-d", "CPU"]
    with subprocess.Popen(
        command, cwd=PROJECT_ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
