"""--profile of the three command lines: who is timed, what counts, where it is printed."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from app.cli.bench import main as bench
from app.rpc_backend.client.connect import open_workers
from tests.helpers.assets import asset
from tests.helpers.native import native_library
from tests.helpers.process import own_worker
from tests.helpers.server_process import running_server

SMALL = ("-c", "256", "-np", "1", "-ub", "64")


@pytest.fixture
def stories() -> Path:
    native_library()
    return asset("stories260k")


def counts(text: str) -> list[dict[str, int]]:
    """Steps per kind of each table in a text."""
    tables: list[dict[str, int]] = []
    for line in text.splitlines():
        if line.startswith("profile of"):
            tables.append({})
        elif tables and (row := re.fullmatch(r"  (\w+) +[\d.]+ +[\d.]+ +(\d+) +[\d.]+", line)):
            tables[-1][row[1]] = int(row[2])
    return tables


def bench_profile(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert bench([*argv, "-t", "1", "--profile", "-o", "none"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_the_bench_prints_a_table_after_each_test(
    stories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    err = bench_profile(capsys, "-m", str(stories), "-p", "8", "-n", "2", "-r", "1")
    assert re.findall(r"^(\w+): [\d.]+ ms in 1 run$", err, re.M) == ["pp8", "tg2"]
    prompt, generation = counts(err)
    # One graph runs eight tokens, the other one token twice.
    assert 2 * prompt["ATTENTION"] == generation["ATTENTION"] > 0


def test_the_bench_times_neither_warm_up_nor_depth(
    stories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def steps(*more: str) -> dict[str, int]:
        base = ("-m", str(stories), "-p", "0", "-n", "2")
        (table,) = counts(bench_profile(capsys, *base, *more))
        return table

    once = steps("-r", "1", "--no-warmup")
    assert once == steps("-r", "1") == steps("-r", "1", "-d", "16")
    assert steps("-r", "3") == {kind: 3 * n for kind, n in once.items()}


def test_the_server_prints_its_profile_when_it_ends(stories: Path) -> None:
    with running_server("-m", str(stories), *SMALL, "--profile", "-t", "1") as server:
        body = {"prompt": "Once upon", "n_predict": 4}
        httpx.post(f"{server.url}/completion", json=body, timeout=60).raise_for_status()
        assert "profile of" not in server.running.output
        assert server.running.terminate() == 0
        (table,) = counts(server.running.output)
    assert table["MATVEC"] > 0


def test_without_the_flag_nothing_is_printed(stories: Path) -> None:
    with running_server("-m", str(stories), *SMALL, "-t", "1") as server:
        server.running.terminate()
        assert "profile" not in server.running.output


def test_a_worker_has_the_profile_and_the_main_host_says_where(
    stories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with own_worker("--profile") as (worker, port):
        argv = ("-m", str(stories), "-p", "4", "-n", "0", "-r", "1", "-ngl", "99")
        err = bench_profile(capsys, *argv, "--rpc", f"127.0.0.1:{port}")
        assert f"profile of RPC0: its worker has it (127.0.0.1:{port}; " in err
        assert worker.terminate() == 0
        (table,) = counts(worker.output)
    assert table["ATTENTION"] > 0


def test_a_worker_that_ran_nothing_says_so() -> None:
    native_library()
    with own_worker("--profile", "-d", "CPU") as (worker, port):
        (device,) = open_workers([f"127.0.0.1:{port}"])
        device.close()
        worker.terminate()
        assert "profile of CPU: nothing ran" in worker.output


def test_an_interrupted_worker_prints_its_profile() -> None:
    native_library()
    with own_worker("--profile", "-d", "CPU") as (worker, _):
        worker.process.send_signal(signal.SIGINT)
        assert worker.process.wait(60) == 0
        assert "profile of CPU" in worker.output


def test_the_reference_executor_says_that_it_has_none(stories: Path) -> None:
    command = [sys.executable, "-m", "app.cli.bench", "-m", str(stories), "--profile"]
    done = subprocess.run(
        [*command, "-p", "2", "-n", "0", "-r", "1", "-t", "1"],
        env={"LLAMA_SERVE_CPU_LEVEL": "reference", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "profile of CPU: this kind of device has none" in done.stderr
