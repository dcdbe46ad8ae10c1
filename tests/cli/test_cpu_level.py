"""LLAMA_SERVE_CPU_LEVEL: every command line reads it, and what cannot be had is refused."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from app.cli.bench import main as bench
from app.cli.benchmark.case import engine_config
from app.cli.benchmark.command import read_bench_command
from app.cli.options import read_command
from app.cli.rpc_server import main as rpc_server
from app.cli.rpc_server import parse_options
from app.cli.serve import main as serve
from app.engine.config import CpuExecutor
from app.engine.pool import Pool
from app.errors import ConfigError
from app.kernels.cpu import library
from app.kernels.cpu.library import LEVELS
from tests.helpers.native import native_library

VARIABLE = "LLAMA_SERVE_CPU_LEVEL"

pytestmark = pytest.mark.usefixtures("logging_as_before")


@pytest.mark.parametrize("word", [*LEVELS, "reference", None])
def test_every_command_line_understands_it(word: str | None, tmp_path: Path) -> None:
    environ = {} if word is None else {VARIABLE: word}
    level = None if word == "reference" else word
    executor = CpuExecutor.REFERENCE if word == "reference" else CpuExecutor.NATIVE
    config = read_command([], environ).engine
    assert (config.cpu_executor, config.cpu_level) == (executor, level)
    model = tmp_path / "m.gguf"
    model.touch()
    command = read_bench_command(["-m", str(model)], environ)
    config = engine_config(command.cases[0].load, command.cases, (), command.cpu)
    assert (config.cpu_executor, config.cpu_level) == (executor, level)
    cpu = parse_options([], environ).cpu
    assert (cpu.executor, cpu.level) == (executor.value, level)


@pytest.mark.parametrize("main", [serve, bench, rpc_server])
@pytest.mark.parametrize("word", ["avx1024", "", "AVX2"])
def test_a_wrong_value_ends_with_one_line_and_status_one(
    main: Callable[[Sequence[str]], int],
    word: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(VARIABLE, word)
    assert main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{VARIABLE} '{word}': expected one of: avx512, avx2, portable, reference" in line


def test_the_level_reaches_the_core() -> None:
    native_library("portable")
    pool = Pool([], threads=1, cpu_level="portable")
    assert getattr(pool.host, "level", None) == "portable"
    pool.close()


def test_a_level_that_is_not_built_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="level 'avx2' cannot be used: avx2: not built"):
        _ = Pool([], threads=1, cpu_level="avx2").host


def test_a_worker_with_a_level_that_is_not_built_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    monkeypatch.setenv(VARIABLE, "portable")
    assert rpc_server(["-p", "0", "-d", "CPU"]) == 1
    assert "'portable' cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize("main", [serve, bench, rpc_server])
def test_help_tells_of_it(
    main: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        main(["--help"])
    except SystemExit as end:
        assert end.code == 0
    assert VARIABLE in capsys.readouterr().out
