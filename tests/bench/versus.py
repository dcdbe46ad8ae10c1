"""Ours against stock llama.cpp on this machine: runs both in turn and prints the ratios.

    python -m tests.bench.versus -m MODEL -t 2 --tests "pp512 tg128 tg128x8 tg64@d4096"
    python -m tests.bench.versus -m MODEL --pool --tests "pp2048 tg64 tg64x8"

Run by hand; needs the asset peer_v7. Each test of each round is one process per side, the side that
goes first changing from round to round, so that a machine that slows down hurts both. The ratio is
the median over the rounds, with the smallest and the largest. `--pool` gives each side two workers
of one thread on this machine, all layers on them, alive only while that side is measured. Several
streams are measured with llama-batched-bench; it cannot start from an empty cache, so a depth of 0
is a depth of 1 there.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.helpers.assets import asset_path
from tests.helpers.server_process import own_workers
from tests.helpers.stock_peers import stock_worker

RUN_TIMEOUT_S: Final = 900
N_WORKERS: Final = 2
CELL_PADDING: Final = 256
MAX_TRIES: Final = 5

TABLE_HEAD: Final = (
    "| test | ours t/s | llama.cpp t/s | ratio | smallest to largest |\n"
    "| --- | ---: | ---: | ---: | ---: |\n"
)

_TEST: Final = re.compile(r"(?:pp(\d+))?(?:(?(1)\+)tg(\d+))?(?:x(\d+))?(?:@d(\d+))?")
_SPEED: Final = re.compile(r'"speed_tg": ([0-9.]+)')


@dataclass(frozen=True, slots=True)
class SpeedTest:
    """A test by its numbers; several streams only for generations."""

    name: str
    n_prompt: int
    n_gen: int
    n_streams: int
    n_depth: int


@dataclass(frozen=True, slots=True)
class Run:
    """What both sides are run with."""

    model: Path
    peer: Path
    threads: int
    repetitions: int
    pooled: bool
    flags: tuple[str, ...]
    """Flags that both understand: -b, -ub, -fa, -ctk, -ctv."""


def parse_test(name: str) -> SpeedTest:
    """Read pp512, tg128, pp512+tg128, tg128x8, each with @d512 behind if wanted.

    Raises: ValueError.
    """
    match = _TEST.fullmatch(name)
    n_prompt, n_gen, n_streams, n_depth = (
        (int(n or 0) for n in match.groups()) if match else 4 * [0]
    )
    if not n_prompt and not n_gen:
        raise ValueError(f"{name!r}: expected a test such as pp512, tg128, tg128x8 or tg128@d512")
    if n_streams > 1 and (n_prompt or not n_gen):
        raise ValueError(f"{name!r}: several streams are measured for generations only")
    return SpeedTest(name, n_prompt, n_gen, max(1, n_streams), n_depth)


def bench_flags(test: SpeedTest, run: Run) -> list[str]:
    """Flags of llama-bench, which are ours too."""
    flags = ["-m", str(run.model), "-t", str(run.threads), "-r", str(run.repetitions)]
    if test.n_prompt and test.n_gen:
        flags += ["-p", "0", "-n", "0", "-pg", f"{test.n_prompt},{test.n_gen}"]
    else:
        flags += ["-p", str(test.n_prompt), "-n", str(test.n_gen)]
    return [*flags, "-d", str(test.n_depth), "-o", "jsonl", *run.flags]


def batched_flags(test: SpeedTest, run: Run) -> list[str]:
    """Flags of llama-batched-bench."""
    depth = max(1, test.n_depth)
    cells = -(-(depth + test.n_gen) // CELL_PADDING) * CELL_PADDING * test.n_streams
    flags = ["-m", str(run.model), "-t", str(run.threads), "-c", str(cells)]
    flags += ["-npp", str(depth), "-ntg", str(test.n_gen), "-npl", str(test.n_streams)]
    return [*flags, "--output-format", "jsonl", *run.flags]


def ours(test: SpeedTest, run: Run, pool: Sequence[str]) -> float:
    """Tokens per second of llama-serve-bench."""
    command = [sys.executable, "-m", "app.cli.bench", *bench_flags(test, run), *pool]
    if test.n_streams > 1:
        command += ["--streams", str(test.n_streams)]
    return _average(_output(command))


def theirs(test: SpeedTest, run: Run, pool: Sequence[str]) -> float:
    """Tokens per second of llama-bench, or of llama-batched-bench for several streams."""
    if test.n_streams == 1:
        command = [str(run.peer / "bin" / "llama-bench"), *bench_flags(test, run), *pool]
        return _average(_output(command))
    command = [str(run.peer / "bin" / "llama-batched-bench"), *batched_flags(test, run), *pool]
    return statistics.fmean(_batched_speed(command) for _ in range(run.repetitions))


def _batched_speed(command: Sequence[str]) -> float:
    """It sometimes ends before its log thread has printed the result."""
    for _ in range(MAX_TRIES):
        if found := _SPEED.search(_output(command)):
            return float(found[1])
    raise SystemExit(f"{' '.join(command)}: printed no speed in {MAX_TRIES} tries")


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}:\n{done.stderr}")
    return done.stdout


def _average(output: str) -> float:
    rows = output.splitlines()
    if len(rows) != 1:
        raise SystemExit(f"expected one result, got:\n{output}")
    return float(json.loads(rows[0])["avg_ts"])


@contextmanager
def _stock_workers() -> Iterator[list[str]]:
    with ExitStack() as stack:
        ports = [stack.enter_context(stock_worker(7)) for _ in range(N_WORKERS)]
        yield [f"127.0.0.1:{port}" for port in ports]


def measured(
    side: Callable[[SpeedTest, Run, Sequence[str]], float], test: SpeedTest, run: Run
) -> float:
    """Tokens per second of one side, with workers of its own if pooled."""
    if not run.pooled:
        return side(test, run, ())
    with own_workers(N_WORKERS) if side is ours else _stock_workers() as endpoints:
        return side(test, run, ("-ngl", "99", "--rpc", ",".join(endpoints)))


def compare(test: SpeedTest, run: Run, n_rounds: int) -> str:
    """Measure both sides in turn and return a line of the table."""
    our_speeds: list[float] = []
    their_speeds: list[float] = []
    for i in range(n_rounds):
        for side in (ours, theirs) if i % 2 == 0 else (theirs, ours):
            speeds = our_speeds if side is ours else their_speeds
            speeds.append(measured(side, test, run))
    return table_line(test.name, our_speeds, their_speeds)


def table_line(name: str, our_speeds: Sequence[float], their_speeds: Sequence[float]) -> str:
    """Medians of both, and median, smallest and largest of the rounds' ratios."""
    ratios = [our / their for our, their in zip(our_speeds, their_speeds, strict=True)]
    return (
        f"| {name} | {statistics.median(our_speeds):.2f} | {statistics.median(their_speeds):.2f} "
        f"| {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |"
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.versus", description="llama-serve against stock llama.cpp"
    )
    add = parser.add_argument
    add("-m", "--model", type=Path, default=asset_path("smollm2"), help="default: %(default)s")
    add("-t", "--threads", type=int, default=2, help="of each side; 1 in a pool")
    add("--tests", default="pp512 tg128 tg128x8", help="default: %(default)s")
    add("--rounds", type=int, default=3, help="default: %(default)s")
    add("-r", "--repetitions", type=int, default=2, help="per round; default: %(default)s")
    add("--pool", action="store_true", help="two workers of one thread on each side")
    add("--peer", type=Path, default=asset_path("peer_v7"), help="default: %(default)s")
    for flag, what in (("-b", "batch"), ("-ub", "micro-batch"), ("-fa", "on, off or auto")):
        add(flag, help=f"{what}, for both sides")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    args = _arguments(argv)
    given = {flag: getattr(args, flag) for flag in ("b", "ub", "fa")}
    flags = [word for flag, value in given.items() if value for word in (f"-{flag}", value)]
    threads = 1 if args.pool else args.threads
    run = Run(args.model, args.peer, threads, args.repetitions, args.pool, tuple(flags))
    tests = [parse_test(name) for name in args.tests.replace(",", " ").split()]
    place = f"{N_WORKERS} workers of 1 thread" if args.pool else f"{threads} threads"
    title = ", ".join([args.model.name, place, *([" ".join(flags)] if flags else [])])
    sys.stdout.write(f"{title}, {args.rounds} rounds\n\n{TABLE_HEAD}")
    for test in tests:
        sys.stdout.write(compare(test, run, args.rounds) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
