"""What the HTTP room is told once, at start; built by `app.cli.options` from flags.

Defaults are llama-server's. `RequestDefaults` is what a request gets for options that it leaves
out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.api.json_value import Json
from app.engine.request import Grammar
from app.sampling.params import SamplingParams

MAX_BODY_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class CorsSettings:
    """Which pages in a browser may call the server; see `middleware.Cors`."""

    origins: str = "*"
    methods: str = "GET, POST, DELETE, OPTIONS"
    headers: str = "*"
    credentials: bool = True


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files of the key and the certificate."""

    key_file: Path
    cert_file: Path


@dataclass(frozen=True, slots=True)
class PredictSettings:
    """Paths that Google's Vertex AI is told about; `health` None is the usual one only."""

    path: str = "/predict"
    health: str | None = None


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """How conversations become prompts.

    `template` is Jinja text or the name of a well-known template, None for the model's own.
    `jinja` says whether tools are allowed; `extracts_reasoning` whether reasoning is told apart
    from the content; `parses` whether answers are looked into at all. `reasoning_budget` is the
    number of tokens for reasoning, -1 for no limit.
    """

    template: str | None = None
    jinja: bool = True
    kwargs: Mapping[str, Json] = field(default_factory=dict)
    enable_thinking: bool = True
    reasoning_effort: str | None = None
    prefill_assistant: bool = True
    extracts_reasoning: bool = True
    parses: bool = True
    reasoning_budget: int = -1
    reasoning_budget_message: str = ""


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """Values of request options that a request does not give; -1 in `n_predict` is no limit."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    n_predict: int = -1
    n_keep: int = 0
    cache_prompt: bool = True
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    sse_ping_interval_s: int = 30
    verbose: bool = False
    special: bool = False


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything that the HTTP room needs to know; `hosts` may hold paths of UNIX sockets.

    `infill_batch` is how many tokens around a gap are looked at; `spm_infill` puts the suffix
    first.
    """

    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 8080
    reuse_port: bool = False
    tls: TlsSettings | None = None
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_prefix: str = ""
    cors: CorsSettings = field(default_factory=CorsSettings)
    timeout_s: int = 3600
    max_body_bytes: int = MAX_BODY_BYTES
    model_name: str = ""
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    ui: bool = True
    endpoint_slots: bool = True
    endpoint_props: bool = False
    endpoint_metrics: bool = False
    slots_debug: bool = False
    slot_save_path: Path | None = None
    cors_proxy: bool = False
    predict: PredictSettings | None = None
    embeddings: bool = False
    reranking: bool = False
    embd_normalize: int = 2
    infill_batch: int = 2048
    spm_infill: bool = False
    chat: ChatSettings = field(default_factory=ChatSettings)
    defaults: RequestDefaults = field(default_factory=RequestDefaults)
