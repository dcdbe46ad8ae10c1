"""llama-serve-bench: what its flags mean, that its forms parse back, and what it counts."""

import csv
import io
import json
import logging
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.cli.bench import main
from app.cli.benchmark.bed import Bed, Repeats
from app.cli.benchmark.case import Workload, by_load, engine_config
from app.cli.benchmark.command import BenchCommand, read_bench_command
from app.cli.benchmark.readers import MAX_VALUES, integers, ranges
from app.cli.benchmark.record import TYPES
from app.engine.kv_cache import KVCache
from app.engine.step import StepPlan, StepResult
from app.errors import ConfigError
from app.ggml.types import GGMLType
from tests.helpers.assets import asset
from tests.helpers.process import own_worker


def words(text: str) -> list[str]:
    return text.split()


LLAMA_BENCH_FIELDS = words(
    "build_commit build_number cpu_info gpu_info backends model_filename model_type model_size "
    "model_n_params n_batch n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v "
    "n_gpu_layers n_cpu_moe split_mode main_gpu no_kv_offload flash_attn devices tensor_split "
    "tensor_buft_overrides load_mode lazy_mode embeddings no_op_offload no_host repack "
    "fit_target fit_min_ctx n_prompt n_gen n_depth test_time avg_ns stddev_ns avg_ts stddev_ts "
)
"""What llama-bench b11434 prints with `-o csv`."""

TESTS = [(16, 0, 0), (40, 0, 0), (0, 4, 0), (8, 4, 0), (16, 0, 8), (40, 0, 8), (0, 4, 8), (8, 4, 8)]
FLAGS = ["-p", "16,40", "-n", "4", "-pg", "8,4", "-d", "0,8", "-b", "32", "-r", "2", "-t", "1"]


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("app")
    before = (list(root.handlers), root.level, ours.level)
    yield
    logging.captureWarnings(False)
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file that is only looked for, with a name that quoting must survive."""
    path = tmp_path / 'it\'s "small".gguf'
    path.touch()
    return path


def read(model: Path, *argv: str) -> BenchCommand:
    return read_bench_command(["-m", str(model), *argv], {})


def bench(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Standard output of a run that succeeds."""
    status = main(argv)
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


# Flags


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512", (512,)),
        ("1,2,4", (1, 2, 4)),
        ("4-7", (4, 5, 6, 7)),
        ("0-10+5", (0, 5, 10)),
        ("1-9*2", (1, 2, 4, 8)),
        ("16,32-64*2,8-16+4", (16, 32, 64, 8, 12, 16)),
    ],
)
def test_ranges_are_llama_benchs(text: str, expected: tuple[int, ...]) -> None:
    read_text = ranges()(text)
    assert isinstance(read_text, tuple)
    assert integers(read_text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "x", "-1", "5-1", "0-8*2", "1-4*1", "1-4+0", "1-", "1-2-3", "1,,2", "99999999999", "²"],
)
def test_malformed_ranges_are_refused(text: str, model: Path) -> None:
    with pytest.raises(ConfigError, match="-p"):
        read(model, "-p", text)


def test_a_range_cannot_fill_the_memory(model: Path) -> None:
    assert ranges()(f"1-{MAX_VALUES}")
    with pytest.raises(ConfigError, match="at most"):
        read(model, "-p", "0-2000000000")
    many = f"1-{MAX_VALUES}"
    with pytest.raises(ConfigError, match="combinations"):
        read(model, "-p", many, "-n", many, "-d", many)


def test_the_defaults_are_llama_benchs(model: Path) -> None:
    command = read(model)
    assert [case.test.name for case in command.cases] == ["pp512", "tg128"]
    config = engine_config(command.cases[0].load, command.cases, (), command.cpu)
    assert (config.n_batch, config.n_ubatch, config.n_gpu_layers) == (2048, 512, None)
    assert (command.repetitions, command.output, command.warmup) == (5, "md", True)


def test_a_repeated_flag_adds_values(model: Path) -> None:
    command = read(model, "-p", "8", "--n-prompt", "16,32", "-n", "0")
    assert [case.test.name for case in command.cases] == ["pp8", "pp16", "pp32"]


def test_cases_come_in_llama_benchs_order(model: Path) -> None:
    command = read(model, *words("-p 8 -n 4 -pg 8,4 -b 16,32 -ctk f16,q8_0 -t 1,2 -d 0,8"))
    found = [(c.n_batch, c.load.type_k, c.load.n_threads, c.test.name) for c in command.cases]
    tests = ("pp8", "tg4", "pp8+tg4", "pp8 @ d8", "tg4 @ d8", "pp8+tg4 @ d8")
    assert found == [
        (batch, type_k, threads, test)
        for batch in (16, 32)
        for type_k in ("f16", "q8_0")
        for threads in (1, 2)
        for test in tests
    ]


def test_only_what_a_load_depends_on_loads_again(model: Path) -> None:
    command = read(model, *words("-p 8,16 -n 4 -d 0,64 -b 16,32 -t 1"))
    assert [len(cases) for _, cases in by_load(command.cases)] == [12]
    command = read(model, *words("-p 8,16 -n 4 -d 0,64 -t 1,2"))
    assert [len(cases) for _, cases in by_load(command.cases)] == [6, 6]


def test_streams_multiply_generations_only(model: Path) -> None:
    command = read(model, *words("-p 8 -n 4 -pg 8,4 -d 0,2 --streams 1,4"))
    assert [case.test.name for case in command.cases] == [
        *("pp8", "tg4", "pp8+tg4", "pp8 @ d2", "tg4 @ d2", "pp8+tg4 @ d2"),
        *("tg4 x4", "tg4 x4 @ d2"),
    ]
    assert command.cases[-1].test.n_tokens == 4 * 4
    key, cases = list(by_load(command.cases))[-1]
    config = engine_config(key, cases, (), command.cpu)
    assert (config.n_ctx, config.n_parallel) == (4 * (2 + 4), 4)


def test_flags_reach_the_engine(model: Path) -> None:
    flags = (
        "-ngl 3 -sm none -mg 1 -ts 3/1 -fa on -ctk q8_0 -ctv f32 -dev RPC1/RPC0 -t 2 -b 64 -ub 32"
    )
    command = read(model, "--rpc", "a:1,b:2", *flags.split())
    config = engine_config(command.cases[0].load, command.cases, command.endpoints, command.cpu)
    assert (config.n_gpu_layers, config.split_mode.value, config.main_gpu) == (3, "none", 1)
    assert (config.tensor_split, config.flash_attn.value) == ((3.0, 1.0), "on")
    assert (config.cache_type_k, config.cache_type_v) == (GGMLType.Q8_0, GGMLType.F32)
    assert (config.devices, config.rpc_endpoints) == (("RPC1", "RPC0"), ("a:1", "b:2"))
    assert (config.threads, config.n_batch, config.n_ubatch) == (2, 64, 32)


def test_flags_without_effect_warn_unless_they_say_the_default(model: Path) -> None:
    assert not read(model, "--poll", "50", "-lm", "auto", "--repack", "1", "-nkvo", "0").warnings
    warnings = read(model, "--poll", "0", "--prio", "2", "-lm", "none").warnings
    assert [warning.split()[0] for warning in warnings] == ["--poll", "--prio", "-lm"]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("-nkvo", "1"),
        ("-embd", "0,1"),
        ("-ncmoe", "2"),
        ("-ot", "a=CPU"),
        ("-sm", "row"),
        ("-ctk", "q2_k"),
        ("-ts", "1/x"),
        ("-fa", "maybe"),
        ("-r", "0"),
        ("-o", "xml"),
        ("-pg", "512"),
        ("--streams", "0"),
    ],
)
def test_what_would_measure_something_else_is_refused_by_name(
    flag: str, value: str, model: Path
) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} "):
        read(model, flag, value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-m", "/no/such.gguf"], "/no/such.gguf"),
        ([], "no model"),
        (["--mmap", "0"], "--mmap"),
    ],
)
def test_errors_go_to_stderr_with_status_1(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert message in err and not out


def test_a_run_without_tests_says_so(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", str(model), "-p", "0", "-n", "0"]) == 1
    assert "nothing to measure" in capsys.readouterr().err


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    text = bench(capsys, "--help")
    for flag in words("-m -p -n -pg -d -b -ub -t -ngl -sm -ts -mg -fa -ctk -ctv -r -o -oe --rpc"):
        assert flag in text
    assert "--streams" in text and "--poll" in text


# Counting


class CountingRunner:
    """Takes cells as the engine does and computes nothing."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self.steps: list[list[tuple[int, int, int]]] = []

    def run(self, plan: StepPlan) -> StepResult:
        for chunk in plan.chunks:
            assert chunk.n_past == self._cache.full.n_used(chunk.seq)
            self._cache.take(chunk.seq, range(chunk.n_past, chunk.n_past + len(chunk.tokens)))
        self.steps.append([(c.seq, c.n_past, len(c.tokens)) for c in plan.chunks])
        self.first_tokens = [chunk.tokens[0] for chunk in plan.chunks]
        row = np.zeros(1, np.float32)
        return StepResult(
            {chunk.seq: row for chunk in plan.chunks if chunk.wants_logits},
            {chunk.seq: len(chunk.tokens) for chunk in plan.chunks},
        )


def counted(test: Workload, repeats: Repeats, n_batch: int = 32) -> CountingRunner:
    cache = KVCache(256, 0, 0)
    runner = CountingRunner(cache)
    samples = Bed(runner, cache, n_vocab=100, first_token=1).measure(
        test, n_batch, repeats, lambda text: None
    )
    assert len(samples) == repeats.n and all(ns > 0 for ns in samples)
    return runner


def test_a_prompt_goes_in_batches_and_starts_anew_each_time() -> None:
    steps = counted(Workload(70, 0), Repeats(2, warmup=False)).steps
    assert steps == 2 * [[(0, 0, 32)], [(0, 32, 32)], [(0, 64, 6)]]


def test_a_generation_goes_token_by_token_and_begins_with_bos() -> None:
    runner = counted(Workload(0, 3), Repeats(2, warmup=False))
    assert runner.steps == 2 * [[(0, 0, 1)], [(0, 1, 1)], [(0, 2, 1)]]
    assert counted(Workload(0, 1), Repeats(1, warmup=False)).first_tokens == [1]


def test_a_warm_up_is_the_prompt_and_one_token() -> None:
    steps = counted(Workload(8, 3), Repeats(1, warmup=True)).steps
    generated = [[(0, 8 + i, 1)] for i in range(3)]
    assert steps == [[(0, 0, 8)], generated[0], [(0, 0, 8)], *generated]


def test_the_depth_is_computed_once() -> None:
    steps = counted(Workload(4, 0, n_depth=16), Repeats(3, warmup=True)).steps
    assert steps == [[(0, 0, 16)], *4 * [[(0, 16, 4)]]]


def test_streams_step_together_each_at_its_depth() -> None:
    steps = counted(Workload(0, 2, n_depth=8, n_streams=3), Repeats(2, warmup=False)).steps
    depths = [[(seq, 0, 8)] for seq in range(3)]
    together = [[(seq, 8 + i, 1) for seq in range(3)] for i in range(2)]
    assert steps == [*depths, *together, *together]


def test_a_window_that_moved_on_is_computed_again() -> None:
    cache = KVCache(256, n_cells_window=16, n_swa=8)
    runner = CountingRunner(cache)
    bed = Bed(runner, cache, n_vocab=100, first_token=None)
    bed.measure(Workload(0, 12, n_depth=12), 4, Repeats(2, warmup=False), lambda text: None)
    depth = [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 4)]]
    generated = [[(0, 12 + i, 1)] for i in range(12)]
    assert runner.steps == 2 * [*depth, *generated]


def test_tests_of_different_depths_share_a_bed() -> None:
    cache = KVCache(256, 0, 0)
    runner = CountingRunner(cache)
    bed = Bed(runner, cache, n_vocab=100, first_token=None)
    for test in (Workload(0, 1, 8, 2), Workload(4, 0, 8), Workload(4, 0), Workload(0, 1, 8, 2)):
        bed.measure(test, 32, Repeats(1, warmup=False), lambda text: None)
    assert runner.steps == [
        *([(0, 0, 8)], [(1, 0, 8)], [(0, 8, 1), (1, 8, 1)]),
        [(0, 8, 4)],
        [(0, 0, 4)],
        *([(0, 0, 8)], [(1, 0, 8)], [(0, 8, 1), (1, 8, 1)]),
    ]


# Forms


@pytest.fixture(scope="module")
def stories() -> Path:
    return asset("stories260k")


def test_json_has_every_field_and_sample(stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(bench(capsys, "-m", str(stories), *FLAGS, "-o", "json"))
    assert [(row["n_prompt"], row["n_gen"], row["n_depth"]) for row in rows] == TESTS
    for row in rows:
        assert list(row) == [*LLAMA_BENCH_FIELDS, "samples_ns", "samples_ts"]
        assert (row["n_batch"], row["n_ubatch"], row["n_threads"]) == (32, 512, 1)
        assert (row["backends"], row["model_n_params"]) == ("CPU", 292_800)
        assert len(row["samples_ns"]) == len(row["samples_ts"]) == 2
        n_tokens = row["n_prompt"] + row["n_gen"]
        speeds = [1e9 * n_tokens / ns for ns in row["samples_ns"]]
        assert row["samples_ts"] == pytest.approx(speeds, rel=1e-5)  # printed with six digits
        assert row["avg_ts"] == pytest.approx(np.mean(speeds))
        assert row["stddev_ts"] == pytest.approx(np.std(speeds, ddof=1), abs=1e-5)
        assert row["avg_ns"] == pytest.approx(np.mean(row["samples_ns"]), abs=1)
        assert row["stddev_ns"] == pytest.approx(np.std(row["samples_ns"], ddof=1), abs=1)


def test_csv_sql_and_jsonl_parse_back(stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["-m", str(stories), "-p", "4", "-n", "2", "-r", "1", "-t", "1"]
    rows = list(csv.DictReader(io.StringIO(bench(capsys, *argv, "-o", "csv"))))
    assert [(list(row), row["n_prompt"], row["n_gen"]) for row in rows] == [
        (LLAMA_BENCH_FIELDS, "4", "0"),
        (LLAMA_BENCH_FIELDS, "0", "2"),
    ]
    lines = bench(capsys, *argv, "-o", "jsonl").splitlines()
    assert [json.loads(line)["n_gen"] for line in lines] == [0, 2]
    database = sqlite3.connect(":memory:")
    database.executescript(bench(capsys, *argv, "-o", "sql"))
    names = [row[1] for row in database.execute("PRAGMA table_info(llama_bench)")]
    assert names == LLAMA_BENCH_FIELDS
    found = database.execute("SELECT n_prompt, n_gen, avg_ts > 0, cpu_strict FROM llama_bench")
    assert found.fetchall() == [(4, 0, 1, 0), (0, 2, 1, 0)]
    database.close()


def test_names_with_quotes_survive_every_form(
    stories: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.write_bytes(stories.read_bytes())
    argv = ["-m", str(model), *words("-p 2 -n 0 -r 1 -t 1 --no-warmup")]
    row = next(csv.DictReader(io.StringIO(bench(capsys, *argv, "-o", "csv"))))
    assert row["model_filename"] == str(model)
    assert json.loads(bench(capsys, *argv, "-o", "json"))[0]["model_filename"] == str(model)
    database = sqlite3.connect(":memory:")
    database.executescript(bench(capsys, *argv, "-o", "sql"))
    assert database.execute("SELECT model_filename FROM llama_bench").fetchone() == (str(model),)
    database.close()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_table_shows_what_is_not_the_default(
    stories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = words("-p 4 -n 2 -r 2 -t 1 -fa 0,1 -b 32 -d 4 --streams 2")
    head, rule, *rows = bench(capsys, "-m", str(stories), *argv).split("\n\n")[0].splitlines()
    columns = ["model", "size", "params", "backend", "threads", "n_batch", "fa", "test", "t/s"]
    assert cells(head) == columns
    assert {len(line) for line in (head, rule, *rows)} == {len(head)}
    assert cells(rows[0])[:4] == ["llama 0.3M F32", "1.12 MiB", "0.29 M", "CPU"]
    assert [(cells(row)[6], cells(row)[7]) for row in rows] == [
        *(("0", "pp4 @ d4"), ("0", "tg2 x2 @ d4"), ("1", "pp4 @ d4"), ("1", "tg2 x2 @ d4"))
    ]
    assert all(" ± " in cells(row)[-1] for row in rows)


def test_streams_are_recorded_and_count_all_tokens(
    stories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = words("-p 0 -n 3 -r 1 -t 1 --streams 1,2 -o jsonl")
    rows = [json.loads(line) for line in bench(capsys, "-m", str(stories), *argv).splitlines()]
    assert [row["n_streams"] for row in rows] == [1, 2]
    assert [row["avg_ts"] * row["avg_ns"] / 1e9 for row in rows] == pytest.approx([3, 6])


def test_both_outputs_and_progress_stay_apart(
    stories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["-m", str(stories), *words("-p 2 -n 1 -r 1 -t 1 -o json -oe csv --progress")]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)) == 2
    assert err.count("llama-serve-bench: benchmark 2/2: run 1/1\n") == 1
    assert ",".join(LLAMA_BENCH_FIELDS) in err


def test_a_reader_that_leaves_ends_the_run_quietly(stories: Path) -> None:
    command = [sys.executable, "-m", "app.cli.bench", "-m", str(stories)]
    command += words("-p 2,4 -n 0 -r 1 -t 1")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_layers_on_a_worker_are_measured(stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with own_worker() as (_, port):
        endpoint = f"127.0.0.1:{port}"
        devices = bench(capsys, "--rpc", endpoint, "--list-devices")
        argv = words("-p 4 -n 2 -r 1 -t 1 -ngl 99 -o jsonl")
        out = bench(capsys, "-m", str(stories), "--rpc", endpoint, *argv)
    assert f"  RPC0: {endpoint} (" in devices
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["backends"], row["gpu_info"]) for row in rows] == 2 * [("RPC", endpoint)]
    assert [row["n_gpu_layers"] for row in rows] == [99, 99]


def test_a_worker_that_is_not_there_is_an_error(
    stories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", str(stories), "--rpc", "127.0.0.1:1", "-p", "2", "-n", "0"]) == 1
    out, err = capsys.readouterr()
    assert "127.0.0.1:1" in err and not out


# Against llama-bench itself


def stock(stories: Path, *argv: str) -> str:
    command = [str(asset("peer_v7") / "bin" / "llama-bench"), "-m", str(stories), *argv]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.peer_v7
def test_rows_have_llama_benchs_fields_types_and_constants(
    stories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*FLAGS, "-fa", "0,auto", "-o", "json"]
    ours = json.loads(bench(capsys, "-m", str(stories), *argv))
    theirs = json.loads(stock(stories, *argv))
    free = {"build_commit", "build_number", "model_type", "test_time"}
    free |= {name for name in ours[0] if name.startswith(("avg", "stddev", "samples"))}
    assert len(ours) == len(theirs) == 16
    for our, their in zip(ours, theirs, strict=True):
        assert [(k, type(v)) for k, v in our.items()] == [(k, type(v)) for k, v in their.items()]
        assert {k: our[k] for k in our if k not in free} == {
            k: their[k] for k in their if k not in free
        }


@pytest.mark.peer_v7
@pytest.mark.parametrize("form", ["csv", "sql", "md"])
def test_headers_are_llama_benchs(
    form: str, stories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = words("-p 2 -n 0 -r 1 -t 1 -fa 0 -ctk f16,bf16 -dev none,auto -b 8 -ub 4")
    argv += ["-o", form]
    ours, theirs = bench(capsys, "-m", str(stories), *argv), stock(stories, *argv)
    end = {"csv": "\n", "sql": " VALUES", "md": "\n| llama"}[form]
    assert ours.partition(end)[0] == theirs.partition(end)[0]


def test_the_table_of_fields_is_llama_benchs_and_streams() -> None:
    assert list(TYPES) == [*LLAMA_BENCH_FIELDS, "n_streams"]
