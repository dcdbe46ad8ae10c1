"""llama-serve-bench: measures prompts and generations as llama-bench does, here or over workers.

Results go to stdout, everything else to stderr. The model stays loaded while neighbouring tests can
share it. Flags and output forms are llama-bench's (b11434); `--streams`, the speed of several
generations at once, and `--profile` are ours.
"""

import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from app.cli.benchmark.bed import Bed, Repeats, Say
from app.cli.benchmark.case import Case, LoadKey, by_load, engine_config
from app.cli.benchmark.command import BenchCommand, read_bench_command
from app.cli.benchmark.flags import GROUPS, IGNORED
from app.cli.benchmark.forms import FORMS, Report
from app.cli.benchmark.profile import RunProfile
from app.cli.benchmark.record import measurement, setup_of, start_time
from app.cli.pipes import hush_stdout
from app.errors import LlamaServeError
from app.logs import DEFAULT_VERBOSITY, LogSettings, setup_logging
from app.version import BUILD_INFO, __version__

_log = logging.getLogger("app.cli.bench")

_PROGRAM = "llama-serve-bench"
_QUIET = 2
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the flags say; return the exit status."""
    try:
        command = read_bench_command(sys.argv[1:] if argv is None else argv, os.environ)
        if command.show_help:
            from app.cli.flags.table import help_text

            print(help_text(_PROGRAM, GROUPS, (IGNORED,)))
            return 0
        if command.show_version:
            print(f"{_PROGRAM} {__version__} ({BUILD_INFO})")
            return 0
        setup_logging(LogSettings(DEFAULT_VERBOSITY if command.verbose else _QUIET))
        for warning in command.warnings:
            _log.warning("%s", warning)
        if command.list_devices:
            from app.cli.list_devices import list_devices

            print(list_devices(command.endpoints, command.rpc_secret, command.rpc_tls))
            return 0
        _measure(command)
        return 0
    except LlamaServeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        hush_stdout()
        return 1


def _measure(command: BenchCommand) -> None:
    outputs = ((command.output, sys.stdout), (command.output_err, sys.stderr))
    reports = [
        Report(FORMS[name], stream, command.varied, has_streams=command.has_streams)
        for name, stream in outputs
        if name in FORMS
    ]
    try:
        n_done = 0
        for key, cases in by_load(command.cases):
            _measure_group(command, key, cases, reports, n_done)
            n_done += len(cases)
    finally:
        for report in reports:
            report.end()


def _measure_group(
    command: BenchCommand,
    key: LoadKey,
    cases: Sequence[Case],
    reports: Sequence[Report],
    n_done: int,
) -> None:
    """Load once and measure `cases`, of which `n_done` came before."""
    from app.engine.loader import load_model

    def say_placement(text: str) -> None:
        if command.verbose or command.endpoints:
            print(text, file=sys.stderr)

    config = replace(
        engine_config(key, cases, command.endpoints, command.cpu),
        rpc_secret=command.rpc_secret,
        rpc_tls=command.rpc_tls,
        hash_min_bytes=command.hash_min_bytes,
        hash_folder=command.hash_folder,
    )
    loaded = load_model(config, lambda progress: None, say_placement)
    try:
        vocab = loaded.tokenizer.vocab
        first = vocab.special.bos if vocab.add_bos else None
        profile = RunProfile(loaded.pool.opened) if command.profile else None
        watch = nullcontext if profile is None else profile.watch
        bed = Bed(loaded.runner, loaded.cache, loaded.info.n_vocab, first, watch)
        setup = setup_of(loaded)
        repeats = Repeats(command.repetitions, command.warmup)
        for number, case in enumerate(cases, n_done + 1):
            say = _teller(command, number)
            say("starting")
            if command.delay_s:
                time.sleep(command.delay_s)
            test_time = start_time()
            samples = bed.measure(case.test, case.n_batch, repeats, say)
            measured = measurement(case, setup, test_time, samples)
            for report in reports:
                report.add(measured)
            if profile is not None:
                print(profile.take(case.test.name, samples), file=sys.stderr)
    finally:
        loaded.close()


def _teller(command: BenchCommand, number: int) -> Say:
    def say(text: str) -> None:
        if command.progress:
            of = f"{number}/{len(command.cases)}"
            print(f"{_PROGRAM}: benchmark {of}: {text}", file=sys.stderr)

    return say


if __name__ == "__main__":
    sys.exit(main())
