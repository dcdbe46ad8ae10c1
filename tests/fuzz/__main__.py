"""Fuzz the worker and the client's reply parser.

    python -m tests.fuzz --minutes 10 [--seed N] [--executor native|reference] [--target worker]

Targets: `worker`, a session in this process between guard pages; `server`, a llama-rpc-server
process over sockets; `replies`, the client against a worker that lies. Rounds run in slices, each a
process of its own, so that a crash or a hang costs one slice and is reported with its seed. With
`--library` the native core comes from another folder (`tests/fuzz/sanitize.py` builds one).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.fuzz.census import Census
from tests.fuzz.sanitize import environment
from tests.fuzz.slice import Plan
from tests.fuzz.slice import main as slice_main
from tests.helpers.assets import PROJECT_ROOT

TARGETS: Final = ("worker", "server", "replies")
SLICE_ROUNDS: Final = 1_000_000
SLICE_SECONDS: Final = 60.0
ROUND_DEADLINE_S: Final = 240.0
# What allocators keep after the first rounds, whatever happens in them.
MOST_GROWTH_MIB: Final = 64
MOST_FAILURES: Final = 5


@dataclass(slots=True)
class Sum:
    """What all slices of a target did."""

    rounds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    census: Census = field(default_factory=Census)
    mib_first: int = 0
    mib_last: int = 0
    failures: list[str] = field(default_factory=list)


def main() -> int:
    """Run the slices of each target; return 1 when something was found."""
    args = _parser().parse_args()
    plans = [_plan(args, target) for target in (TARGETS if args.target == "all" else [args.target])]
    if args.as_slice:
        return slice_main(plans[0], Path(args.as_slice))
    found = 0
    for plan in plans:
        total = _run(plan, args.minutes * 60 / len(plans), args.rounds)
        _print(plan, total)
        found += len(total.failures)
    return 1 if found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=1.0)
    add("--rounds", type=int, default=SLICE_ROUNDS, help="most rounds of each target")
    add("--seed", type=int, default=0, help="of the first round")
    add("--target", choices=(*TARGETS, "all"), default="all")
    add("--executor", choices=("native", "reference"), default="native")
    add("--level", help="instructions of the native core")
    add("--threads", type=int, default=1)
    add("--library", help="folder with another build of the native core")
    add("--slice-seconds", type=float, default=SLICE_SECONDS)
    add("--as-slice", metavar="FILE", help=argparse.SUPPRESS)
    return parser


def _plan(args: argparse.Namespace, target: str) -> Plan:
    return Plan(
        target,
        args.executor,
        args.level,
        args.threads,
        args.seed,
        args.rounds,
        args.slice_seconds,
        ROUND_DEADLINE_S,
        args.library,
    )


def _run(plan: Plan, seconds: float, rounds: int) -> Sum:
    total, end = Sum(), time.monotonic() + seconds
    while (
        rounds > total.rounds
        and (left := end - time.monotonic()) > 0
        and len(total.failures) < MOST_FAILURES
    ):
        part = replace(
            plan,
            first=plan.first + total.rounds,
            rounds=rounds - total.rounds,
            seconds=min(plan.seconds, left),
        )
        _one_slice(part, total)
    return total


def _one_slice(plan: Plan, total: Sum) -> None:
    extra = environment() if plan.library else {}
    with tempfile.TemporaryDirectory() as folder:
        seed_file = Path(folder) / "seed"
        seed_file.write_text(str(plan.first), encoding="ascii")
        done = subprocess.run(
            [*_command(plan), "--as-slice", str(seed_file)],
            cwd=PROJECT_ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | extra,
            capture_output=True,
            text=True,
            errors="replace",
        )
        seed = int(seed_file.read_text(encoding="ascii") or plan.first)
    lines = done.stdout.splitlines()
    if done.returncode in (0, 1) and lines and lines[-1].startswith("{"):
        _add(json.loads(lines[-1]), plan, seed, total)
        noise = done.stderr.strip()
        if "runtime error" in noise:
            total.failures.append(f"seed {seed} or before: {noise[-3000:]}")
        return
    total.rounds += seed - plan.first + 1
    said = f"{done.stdout[-500:]}{done.stderr[:2000]}…{done.stderr[-500:]}"
    what = f"the process ended with {done.returncode}:\n{said}"
    total.failures.append(f"{what}\n{_reproduce(plan, seed)}")


def _add(summary: "dict[str, object]", plan: Plan, seed: int, total: Sum) -> None:
    rounds, failure = summary["rounds"], summary["failure"]
    warm, end = summary["mib_warm"], summary["mib_end"]
    outcomes, accepted, refused = summary["outcomes"], summary["accepted"], summary["refused"]
    assert isinstance(rounds, int) and isinstance(warm, int) and isinstance(end, int)
    assert isinstance(outcomes, dict) and isinstance(accepted, dict) and isinstance(refused, dict)
    total.rounds += rounds + bool(failure)
    total.outcomes.update(outcomes)
    total.census.update(Census(Counter(accepted), Counter(refused)))
    total.mib_first = total.mib_first or warm
    total.mib_last = end
    if failure:
        total.failures.append(f"{failure}\n{_reproduce(plan, seed)}")
    elif end - warm > MOST_GROWTH_MIB:
        total.failures.append(f"seeds {plan.first} to {seed}: {warm} MiB grew to {end} MiB")


def _reproduce(plan: Plan, seed: int) -> str:
    return "  reproduce: " + " ".join(_command(replace(plan, first=seed, rounds=1)))


def _command(plan: Plan) -> list[str]:
    command = [
        *(sys.executable, "-m", "tests.fuzz", "--target", plan.target, "--seed", str(plan.first)),
        *("--rounds", str(plan.rounds), "--executor", plan.executor),
        *("--threads", str(plan.threads), "--slice-seconds", f"{plan.seconds:g}"),
    ]
    command += [] if plan.level is None else ["--level", plan.level]
    command += [] if plan.library is None else ["--library", plan.library]
    return command


def _print(plan: Plan, total: Sum) -> None:
    where = "" if plan.target == "replies" else f", {plan.executor}"
    lines = [
        f"{plan.target}{where}: {total.rounds} rounds, {len(total.failures)} failures",
        f"  memory: {total.mib_first} MiB at first, {total.mib_last} MiB at the end",
        *(f"  {name}: {count}" for name, count in total.outcomes.most_common()),
    ]
    lines += total.census.lines()
    lines += [f"FAILURE: {failure}" for failure in total.failures]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
