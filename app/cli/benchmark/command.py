"""What llama-serve-bench was asked to do, read from its command line."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.cli.benchmark.case import Case, Parameters, cases_of
from app.cli.benchmark.flags import OPTIONS
from app.cli.benchmark.readers import integers
from app.cli.flags.environment import CACHE_MIN_SIZE, CpuChoice, cpu_choice
from app.cli.flags.parser import Parsed, parse
from app.cli.flags.securing import rpc_secret, rpc_tls, secret_remarks
from app.cli.hf_files import HfSource, cache_folder, resolve
from app.cli.packaged_file import HASHES, cache_dir
from app.engine.config import FlashAttention
from app.errors import ConfigError
from app.rpc_backend.streams.settings import ClientTls

MAX_CASES: Final = 100_000

_COLUMNS: Final = (
    ("n_batch", "batch_size"),
    ("n_ubatch", "ubatch_size"),
    ("n_threads", "threads"),
    ("type_k", "cache_type_k"),
    ("type_v", "cache_type_v"),
    ("n_gpu_layers", "n_gpu_layers"),
    ("split_mode", "split_mode"),
    ("main_gpu", "main_gpu"),
    ("flash_attn", "flash_attn"),
    ("devices", "device"),
    ("tensor_split", "tensor_split"),
)
"""Record field and flag of what only gets a column when it is not the default."""


@dataclass(frozen=True, slots=True)
class BenchCommand:
    """The run; `varied` names the record fields whose flags say something but the default."""

    show_help: bool
    show_version: bool
    list_devices: bool
    cases: tuple[Case, ...]
    endpoints: tuple[str, ...]
    rpc_secret: bytes | None = field(repr=False)
    rpc_tls: ClientTls | None
    repetitions: int
    delay_s: int
    warmup: bool
    output: str
    output_err: str
    progress: bool
    verbose: bool
    hash_min_bytes: int | None
    hash_folder: Path
    cpu: CpuChoice
    profile: bool
    varied: frozenset[str]
    has_streams: bool
    warnings: tuple[str, ...]


def read_bench_command(argv: Sequence[str], environ: Mapping[str, str]) -> BenchCommand:
    """Return what arguments (without the program's name) and environment say; a model on the hub is
    fetched here.

    Raises: ConfigError, UnknownFlagError.
    """
    parsed = parse(OPTIONS, argv, environ)
    stops = any(parsed.flag(dest) for dest in ("help", "version", "list_devices"))
    return BenchCommand(
        show_help=parsed.flag("help"),
        show_version=parsed.flag("version"),
        list_devices=parsed.flag("list_devices"),
        cases=() if stops else _cases(parsed, environ),
        endpoints=parsed.texts("rpc"),
        rpc_secret=rpc_secret(parsed),
        rpc_tls=rpc_tls(parsed),
        repetitions=parsed.integer("repetitions"),
        delay_s=parsed.integer("delay"),
        warmup=not parsed.flag("no_warmup"),
        output=parsed.text("output"),
        output_err=parsed.text("output_err"),
        progress=parsed.flag("progress"),
        verbose=parsed.flag("verbose"),
        hash_min_bytes=parsed.maybe_integer(CACHE_MIN_SIZE.dest),
        hash_folder=cache_dir(environ) / HASHES,
        cpu=cpu_choice(parsed),
        profile=parsed.flag("profile"),
        varied=_varied(parsed),
        has_streams=_numbers(parsed, "streams") != (1,),
        warnings=(*parsed.warnings, *secret_remarks(parsed)),
    )


def usable_cpus() -> int:
    """Return how many CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _numbers(parsed: Parsed, dest: str) -> tuple[int, ...]:
    return integers(parsed.texts(dest))


def _cases(parsed: Parsed, environ: Mapping[str, str]) -> tuple[Case, ...]:
    dests = [flag for _, flag in _COLUMNS] + ["n_prompt", "n_gen", "n_depth", "streams"]
    n_cases = 1
    for dest in dests:
        n_cases *= max(1, len(parsed.texts(dest)))
    if n_cases > MAX_CASES:
        raise ConfigError(f"{n_cases} combinations: expected at most {MAX_CASES}")
    pairs = (pair.split(",") for pair in parsed.texts("pg"))
    cases = cases_of(
        Parameters(
            models=_models(parsed, environ),
            n_prompt=_numbers(parsed, "n_prompt"),
            n_gen=_numbers(parsed, "n_gen"),
            n_pg=tuple((int(prompt), int(gen)) for prompt, gen in pairs),
            n_depth=_numbers(parsed, "n_depth"),
            n_streams=_numbers(parsed, "streams"),
            n_batch=_numbers(parsed, "batch_size"),
            n_ubatch=_numbers(parsed, "ubatch_size"),
            type_k=parsed.texts("cache_type_k"),
            type_v=parsed.texts("cache_type_v"),
            n_threads=_numbers(parsed, "threads") or (usable_cpus(),),
            n_gpu_layers=_numbers(parsed, "n_gpu_layers"),
            split_mode=parsed.texts("split_mode"),
            main_gpu=_numbers(parsed, "main_gpu"),
            devices=parsed.texts("device"),
            tensor_split=parsed.texts("tensor_split"),
            flash_attn=tuple(FlashAttention(word) for word in parsed.texts("flash_attn")),
        )
    )
    if not cases:
        raise ConfigError("nothing to measure: -p, -n and -pg leave no test")
    return cases


def _models(parsed: Parsed, environ: Mapping[str, str]) -> tuple[Path, ...]:
    files = [Path(name).expanduser() for name in parsed.texts("model")]
    for file in files:
        if not file.is_file():
            raise ConfigError(f"-m {file}: no such file")
    names = parsed.texts("hf_file")
    for i, repo in enumerate(parsed.texts("hf_repo")):
        source = HfSource(
            repo,
            cache_folder(environ),
            file=names[i] if i < len(names) else "",
            token=parsed.text("hf_token"),
            offline=parsed.flag("offline"),
        )
        files.append(resolve(source))
    if not files:
        raise ConfigError("no model: name a file with -m or a repository with -hf")
    return tuple(files)


def _varied(parsed: Parsed) -> frozenset[str]:
    defaults = {option.dest: option.default for option in OPTIONS}
    return frozenset(
        field for field, dest in _COLUMNS if parsed.texts(dest) != (defaults[dest] or ())
    )
