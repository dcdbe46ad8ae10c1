"""One slice of a fuzz run, in a process of its own: rounds by seed, each with a deadline.

Prints its summary as one line of JSON. The seed that runs stands in a file all the time, so that
whoever started the slice knows it when the process is gone.
"""

import faulthandler
import json
import logging
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from unittest import mock

from tests.fuzz.census import Census

WARM_ROUNDS: Final = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """What a slice does: at most `rounds` rounds from seed `first` on, for at most `seconds`.
    `library` is a folder with other builds of the native core.
    """

    target: str
    executor: str
    level: str | None
    threads: int
    first: int
    rounds: int
    seconds: float
    deadline_s: float
    library: str | None = None


class Target(Protocol):
    """What is fuzzed."""

    @property
    def outcomes(self) -> "Counter[str]":
        """How rounds ended."""

    @property
    def census(self) -> Census:
        """What was reached."""

    def round(self, seed: int) -> None:
        """Do one thing that depends on the seed alone.

        Raises: AssertionError.
        """

    def n_bytes(self) -> int:
        """Private memory of the process that is fuzzed."""

    def check(self) -> None:
        """Look at what rounds must leave alone.

        Raises: AssertionError.
        """


@contextmanager
def open_target(plan: Plan) -> Iterator[Target]:
    """Open what the plan names; modules are imported here, since some are heavy."""
    if plan.target == "replies":
        from tests.fuzz.replies import ReplyTarget

        with tempfile.TemporaryDirectory() as folder:
            yield ReplyTarget(Path(folder))
    elif plan.target == "server":
        from tests.fuzz.server import serving

        with serving(plan.executor, plan.level, plan.threads) as server:
            yield server
    else:
        from tests.fuzz.store import open_store
        from tests.fuzz.worker import WorkerTarget, open_device

        census = Census()
        with (
            _library(plan.library),
            open_store(census) as store,
            open_device(plan.executor, plan.level, plan.threads) as device,
        ):
            worker = WorkerTarget(device, store, census)
            yield worker
            worker.close()


@contextmanager
def _library(folder: str | None) -> Iterator[None]:
    if folder is None:
        yield
        return
    with mock.patch("app.kernels.cpu.library.FOLDER", Path(folder)):
        yield


def run_slice(plan: Plan, seed_file: Path, report: Callable[[str], object]) -> bool:
    """Run the rounds; report a line of JSON; return whether all went well."""
    logging.disable(logging.CRITICAL)
    if not os.environ.get("ASAN_OPTIONS"):
        faulthandler.enable()
    end, seed, failure, warm = time.monotonic() + plan.seconds, plan.first, "", 0
    with open_target(plan) as target:
        while seed < plan.first + plan.rounds and (time.monotonic() < end or seed == plan.first):
            seed_file.write_text(str(seed), encoding="ascii")
            faulthandler.dump_traceback_later(plan.deadline_s, exit=True)
            try:
                target.round(seed)
            except Exception:  # noqa: BLE001 - whatever it is, it is a finding
                failure = traceback.format_exc(limit=-6)[-3000:]
                break
            seed += 1
            if seed - plan.first == WARM_ROUNDS:
                warm = target.n_bytes()
        try:
            target.check()
        except Exception:  # noqa: BLE001 - likewise
            failure = failure or f"after the last round: {traceback.format_exc(limit=-6)}"
        faulthandler.cancel_dump_traceback_later()
        touched = target.n_bytes()
        summary = {
            "rounds": seed - plan.first,
            "failure": failure,
            "outcomes": target.outcomes,
            "accepted": target.census.accepted,
            "refused": target.census.refused,
            "mib_warm": (warm or touched) >> 20,
            "mib_end": touched >> 20,
        }
    report(json.dumps(summary))
    return not failure


def main(plan: Plan, seed_file: Path) -> int:
    """Be the process of a slice."""
    ok = run_slice(plan, seed_file, lambda line: sys.stdout.write(line + "\n"))
    return 0 if ok else 1
