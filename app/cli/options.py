"""Command line, environment and configuration files of llama-serve, as configuration objects.

Everything that a user may say is read here and nowhere else; the flags themselves stand in
`app.cli.flags`. Values that depend on several flags, on files or on one another are settled here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.api.json_value import JsonObject, parse_object
from app.api.settings import (
    ChatSettings,
    CorsSettings,
    RequestDefaults,
    ServerSettings,
    TlsSettings,
)
from app.cli.demo import DEMO_MODEL
from app.cli.flags.config_files import ConfigFile
from app.cli.flags.environment import CACHE_MIN_SIZE, cpu_choice
from app.cli.flags.escapes import unescaped
from app.cli.flags.keeping import sleep_idle_s, slot_folder
from app.cli.flags.origins import cors_origins
from app.cli.flags.parser import Parsed, parse
from app.cli.flags.readers import parse_override
from app.cli.flags.requests import sampling_dest
from app.cli.flags.securing import rpc_secret, rpc_tls, secret_remarks
from app.cli.flags.table import OPTIONS
from app.cli.hf_files import HfSource, cache_folder
from app.cli.packaged_file import HASHES, cache_dir
from app.cli.vertex import for_vertex
from app.engine.config import CpuExecutor, EngineConfig, FlashAttention, RopeOverrides, SplitMode
from app.engine.request import Grammar, GrammarKind
from app.errors import ConfigError, RequestError
from app.ggml.types import GGMLType
from app.logs import MAX_VERBOSITY, LogSettings
from app.models.hparams import Pooling
from app.sampling.kinds import JsonValue
from app.sampling.params import PARAMS, SamplingParams, params_from_request

_TELLING_VERBOSITY: Final = 9
"""Above it, answers tell `__verbose`."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the model comes from: a file, a repository, or the demo; all empty for none. What the
    demo's workers have to know is in `demo_flags`.
    """

    path: Path | None
    hf: HfSource | None
    demo: bool
    demo_flags: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is to be no model."""
        return self.path is None and self.hf is None and not self.demo


@dataclass(frozen=True, slots=True)
class Command:
    """What llama-serve was asked to do."""

    show_help: bool
    show_version: bool
    show_completion: bool
    list_devices: bool
    list_cache: bool
    source: ModelSource
    engine: EngineConfig
    server: ServerSettings
    logs: LogSettings
    warnings: tuple[str, ...]


def read_command(
    argv: Sequence[str], environ: Mapping[str, str], files: Sequence[ConfigFile] = ()
) -> Command:
    """Return what arguments (without the program's name), environment and files say.

    Raises: ConfigError, UnknownFlagError.
    """
    settings = [setting for file in files for setting in file.settings]
    parsed = parse(OPTIONS, argv, environ, settings)
    source = _source(parsed, environ)
    return Command(
        show_help=parsed.flag("help"),
        show_version=parsed.flag("version"),
        show_completion=parsed.flag("completion_bash"),
        list_devices=parsed.flag("list_devices"),
        list_cache=parsed.flag("cache_list"),
        source=source,
        engine=_engine(parsed, source.path or Path(), cache_dir(environ) / HASHES),
        server=for_vertex(
            _server(parsed, source, slots_debug="LLAMA_SERVER_SLOTS_DEBUG" in environ), environ
        ),
        logs=_logs(parsed),
        warnings=(*parsed.warnings, *_remarks(parsed), *secret_remarks(parsed)),
    )


def _source(parsed: Parsed, environ: Mapping[str, str]) -> ModelSource:
    path, repo = parsed.text("model"), parsed.text("hf_repo")
    hf = None
    if repo and not path:
        hf = HfSource(
            repo,
            cache_folder(environ),
            file=parsed.text("hf_file"),
            token=parsed.text("hf_token"),
            offline=parsed.flag("offline"),
        )
    secret_file = parsed.text("rpc_secret_file")
    return ModelSource(
        Path(path).expanduser() if path else None,
        hf,
        parsed.flag("demo"),
        ("--secret-file", secret_file) if secret_file else (),
    )


def _engine(parsed: Parsed, model_path: Path, hash_folder: Path) -> EngineConfig:
    devices = parsed.texts("devices") if parsed.is_given("devices") else None
    split_mode = parsed.text("split_mode")
    cpu = cpu_choice(parsed)
    return EngineConfig(
        model_path=model_path,
        rpc_endpoints=parsed.texts("rpc"),
        rpc_secret=rpc_secret(parsed),
        rpc_tls=rpc_tls(parsed),
        hash_min_bytes=parsed.maybe_integer(CACHE_MIN_SIZE.dest),
        hash_folder=hash_folder,
        devices=() if devices == ("none",) else devices,
        n_gpu_layers=parsed.maybe_integer("gpu_layers"),
        split_mode=SplitMode.NONE if split_mode == "none" else SplitMode.LAYER,
        tensor_split=tuple(float(share) for share in parsed.texts("tensor_split")),
        main_gpu=parsed.integer("main_gpu"),
        n_ctx=parsed.integer("ctx_size"),
        n_batch=parsed.integer("batch"),
        n_ubatch=parsed.integer("ubatch"),
        n_parallel=_slots(parsed.integer("parallel")),
        kv_unified=None if parsed.value("kv_unified") is None else parsed.flag("kv_unified"),
        kv_offload=parsed.flag("kv_offload"),
        swa_full=parsed.flag("swa_full"),
        cache_type_k=GGMLType[parsed.text("cache_type_k").upper()],
        cache_type_v=GGMLType[parsed.text("cache_type_v").upper()],
        flash_attn=FlashAttention(parsed.text("flash_attn")),
        cpu_executor=CpuExecutor(cpu.executor),
        cpu_level=cpu.level,
        threads=_threads(parsed.integer("threads")),
        threads_batch=_threads(parsed.integer("threads_batch")),
        slot_prompt_similarity=parsed.number("slot_prompt_similarity"),
        context_shift=parsed.flag("context_shift"),
        cache_ram_mib=parsed.integer("cache_ram"),
        cache_idle_slots=parsed.flag("cache_idle_slots"),
        sleep_idle_s=sleep_idle_s(parsed),
        warmup=parsed.flag("warmup"),
        profile=parsed.flag("profile"),
        rope=_rope(parsed),
        embeds=_embeds(parsed),
        pooling=_pooling(parsed),
        override_kv=tuple(parse_override(item) for item in parsed.texts("override_kv")),
    )


def _embeds(parsed: Parsed) -> bool:
    return parsed.flag("embeddings") or parsed.flag("reranking")


def _pooling(parsed: Parsed) -> Pooling | None:
    """What the flags say about pooling; to rank is one kind, and the last flag counts."""
    pooling = None
    for given in parsed.given:
        if given.option.dest == "reranking" and given.value:
            pooling = Pooling.RANK
        elif given.option.dest == "pooling":
            pooling = Pooling[str(given.value).upper()]
    return pooling


def _slots(n: int) -> int:
    if n == 0 or n < -1:
        raise ConfigError(f"--parallel {n}: expected 1 or more, or -1")
    return n


def _threads(n: int) -> int | None:
    return None if n <= 0 else n


def _rope(parsed: Parsed) -> RopeOverrides:
    return RopeOverrides(
        scaling=parsed.text("rope_scaling") or None,
        scale=parsed.maybe_number("rope_scale"),
        freq_base=parsed.maybe_number("rope_freq_base"),
        freq_scale=parsed.maybe_number("rope_freq_scale"),
        yarn_orig_ctx=parsed.maybe_integer("yarn_orig_ctx"),
        yarn_ext_factor=parsed.maybe_number("yarn_ext_factor"),
        yarn_attn_factor=parsed.maybe_number("yarn_attn_factor"),
        yarn_beta_slow=parsed.maybe_number("yarn_beta_slow"),
        yarn_beta_fast=parsed.maybe_number("yarn_beta_fast"),
    )


def _server(parsed: Parsed, source: ModelSource, *, slots_debug: bool) -> ServerSettings:
    aliases = tuple(sorted(set(parsed.texts("alias")) or {_default_name(source)}))
    return ServerSettings(
        hosts=parsed.texts("host"),
        port=parsed.integer("port"),
        reuse_port=parsed.flag("reuse_port"),
        tls=_tls(parsed),
        api_keys=(*parsed.texts("api_key"), *_keys_in_file(parsed.text("api_key_file"))),
        api_prefix=parsed.text("api_prefix").rstrip("/"),
        cors=CorsSettings(
            cors_origins(parsed),
            parsed.text("cors_methods"),
            parsed.text("cors_headers"),
            parsed.flag("cors_credentials"),
        ),
        timeout_s=parsed.integer("timeout"),
        model_name=aliases[0],
        aliases=aliases,
        tags=tuple(sorted(set(parsed.texts("tags")))),
        ui=parsed.flag("ui"),
        endpoint_slots=parsed.flag("slots"),
        endpoint_props=parsed.flag("props"),
        endpoint_metrics=parsed.flag("metrics"),
        slots_debug=slots_debug,
        slot_save_path=slot_folder(parsed),
        cors_proxy=parsed.flag("ui_mcp_proxy"),
        embeddings=_embeds(parsed),
        reranking=_embeds(parsed) and _pooling(parsed) is Pooling.RANK,
        embd_normalize=parsed.integer("embd_normalize"),
        infill_batch=parsed.integer("batch"),
        spm_infill=parsed.flag("spm_infill"),
        chat=_chat(parsed),
        defaults=_defaults(parsed),
    )


def _default_name(source: ModelSource) -> str:
    if source.path is not None:
        return str(source.path)
    return source.hf.repo if source.hf is not None else Path(DEMO_MODEL.cached_as).stem


def _tls(parsed: Parsed) -> TlsSettings | None:
    key, cert = parsed.text("ssl_key_file"), parsed.text("ssl_cert_file")
    if not key and not cert:
        return None
    if not key or not cert:
        raise ConfigError("HTTPS needs both --ssl-key-file and --ssl-cert-file")
    for flag, path in (("--ssl-key-file", key), ("--ssl-cert-file", cert)):
        _file_text(flag, path)
    return TlsSettings(Path(key), Path(cert))


def _keys_in_file(path: str) -> tuple[str, ...]:
    """Keys are whole lines; empty lines and comments are none."""
    if not path:
        return ()
    lines = [line.strip() for line in _file_text("--api-key-file", path).splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"--api-key-file {path}: has no key, so nobody could get in")
    return keys


def _chat(parsed: Parsed) -> ChatSettings:
    template = parsed.text("chat_template")
    if parsed.text("chat_template_file"):
        template = _file_text("--chat-template-file", parsed.text("chat_template_file"))
    effort = parsed.text("reasoning_effort")
    return ChatSettings(
        template=template or None,
        jinja=parsed.flag("jinja"),
        kwargs=_json_object("--chat-template-kwargs", parsed.text("chat_template_kwargs")),
        enable_thinking=parsed.text("reasoning") != "off" and effort != "none",
        reasoning_effort=None if effort in ("default", "none") else effort,
        prefill_assistant=parsed.flag("prefill_assistant"),
        extracts_reasoning=parsed.text("reasoning_format") != "none",
        parses=not parsed.flag("skip_chat_parsing"),
        reasoning_budget=parsed.integer("reasoning_budget"),
        reasoning_budget_message=parsed.text("reasoning_budget_message"),
    )


def _defaults(parsed: Parsed) -> RequestDefaults:
    stops = parsed.texts("reverse_prompt")
    verbose = parsed.flag("verbose") or parsed.integer("verbosity") > _TELLING_VERBOSITY
    return RequestDefaults(
        sampling=_sampling(parsed),
        n_predict=parsed.integer("predict"),
        n_keep=parsed.integer("keep"),
        cache_prompt=parsed.flag("cache_prompt"),
        stop=tuple(map(unescaped, stops)) if parsed.flag("escape") else stops,
        grammar=_grammar(parsed),
        sse_ping_interval_s=parsed.integer("sse_ping_interval"),
        verbose=verbose,
        special=parsed.flag("special"),
    )


def _sampling(parsed: Parsed) -> SamplingParams:
    """Read the texts of sampling flags as a request with the same values would be read."""
    said: dict[str, JsonValue] = {}
    order = [given.option.dest for given in parsed.given]
    for param in PARAMS:
        dests = [sampling_dest(param, i) for i in range(len(param.flags))]
        given = [dest for dest in dests if dest in order]
        if not given:
            continue
        last = max(given, key=lambda dest: len(order) - order[::-1].index(dest))
        flag = param.flags[dests.index(last)]
        texts = parsed.texts(last) if flag.metavar is not None else ()
        if parsed.flag("escape"):
            texts = tuple(map(unescaped, texts))
        if flag.metavar is not None or parsed.flag(last):
            said[param.name] = flag.value(texts)
    try:
        return params_from_request(said, SamplingParams())
    except RequestError as error:
        raise ConfigError(f"sampling: {error}") from error


def _grammar(parsed: Parsed) -> Grammar | None:
    grammar, schema = parsed.text("grammar"), parsed.text("json_schema")
    if parsed.text("grammar_file"):
        grammar = _file_text("--grammar-file", parsed.text("grammar_file"))
    if parsed.text("json_schema_file"):
        schema = _file_text("--json-schema-file", parsed.text("json_schema_file"))
    if grammar and schema:
        raise ConfigError("--grammar and --json-schema exclude one another")
    if grammar:
        return Grammar(GrammarKind.GBNF, grammar)
    if not schema:
        return None
    value = _json_object("--json-schema", schema) or {"type": "object"}
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def _logs(parsed: Parsed) -> LogSettings:
    file = parsed.text("log_file")
    return LogSettings(
        verbosity=MAX_VERBOSITY if parsed.flag("verbose") else parsed.integer("verbosity"),
        file=Path(file) if file else None,
        disabled=parsed.flag("log_disable"),
    )


def _remarks(parsed: Parsed) -> list[str]:
    """Warnings about values that mean something else here."""
    remarks: list[str] = []
    if (mode := parsed.text("split_mode")) in ("row", "tensor"):
        remarks.append(f"--split-mode {mode} is not supported: whole layers are split")
    serves, has_key = not parsed.flag("list_devices"), parsed.texts("api_key")
    if serves and cors_origins(parsed) == "*" and not (has_key or parsed.text("api_key_file")):
        remarks.append("no API key is set and any web page may call the server (--cors-origins)")
    return remarks


def _file_text(flag: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise ConfigError(f"{flag} {path}: {reason}") from error


def _json_object(flag: str, text: str) -> JsonObject:
    if not text:
        return {}
    try:
        return parse_object(text.encode())
    except RequestError as error:
        raise ConfigError(f"{flag}: {error}") from error
