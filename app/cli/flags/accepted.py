"""Flags of llama-server that do nothing here, so that scripts written for it still start.

Ignored ones change speed, placement or looks and get one line of warning; those without which
results would differ are refused.
"""

from dataclasses import dataclass
from typing import Final

from app.cli.flags import readers
from app.cli.flags.option import Group, Option, Reader, Repeat, Status

_PLACEMENT: Final = "placement follows -ts, -ngl and --device only"
_FITTING: Final = "a model that does not fit is refused with the reason"
_MAPPING: Final = "files are always mapped"
_THREADING: Final = "threads are placed by the operating system"
_SPECULATION: Final = "there is no speculative decoding"
_CACHING: Final = "prompts are reused from slots only"
_ROUTING: Final = "there is no router mode"
_LOGGING: Final = "log lines have one form"
_PAGE: Final = "the page has no such feature"
_MEDIA: Final = "models take text only"
_REASONING: Final = "templates keep reasoning wherever they can"


@dataclass(frozen=True, slots=True)
class _Row:
    """One flag: its names as in llama-server's README; `off` names switch it off."""

    names: str
    note: str
    metavar: str = ""
    env: str = ""
    off: str = ""
    default: bool | str | None = None
    status: Status = Status.IGNORED
    read: Reader = readers.text


_IGNORED: Final = (
    _Row("-ot, --override-tensor", _PLACEMENT, "PATTERN=BUFFER,...", "LLAMA_ARG_OVERRIDE_TENSOR"),
    _Row("-cmoe, --cpu-moe", _PLACEMENT, env="LLAMA_ARG_CPU_MOE"),
    _Row("-ncmoe, --n-cpu-moe", _PLACEMENT, "N", "LLAMA_ARG_N_CPU_MOE"),
    _Row("-ncffn, --n-cpu-ffn", _PLACEMENT, "N", "LLAMA_ARG_N_CPU_FFN"),
    _Row("--op-offload", _PLACEMENT, off="--no-op-offload", default=True),
    _Row("--repack", _PLACEMENT, "", "LLAMA_ARG_REPACK", "-nr, --no-repack", True),
    _Row("--no-host", _PLACEMENT, env="LLAMA_ARG_NO_HOST"),
    _Row("-fit, --fit", _FITTING, "[on|off]", "LLAMA_ARG_FIT", default="on", read=readers.on_off),
    _Row("-fitt, --fit-target", _FITTING, "MiB0,MiB1,...", "LLAMA_ARG_FIT_TARGET"),
    _Row("-fitc, --fit-ctx", _FITTING, "N", "LLAMA_ARG_FIT_CTX"),
    _Row(
        "-lm, --load-mode",
        _MAPPING,
        "MODE",
        "LLAMA_ARG_LOAD_MODE",
        default="auto",
        read=readers.one_of("auto", "none", "mmap", "mlock", "mmap+mlock", "dio"),
    ),
    _Row("-lzm, --lazy-mode", _MAPPING, "MODE", "LLAMA_ARG_LAZY_MODE", default="auto"),
    _Row("--mmap", _MAPPING, "", "LLAMA_ARG_MMAP", "--no-mmap", True),
    _Row("--mlock", "memory is not locked", env="LLAMA_ARG_MLOCK"),
    _Row("-dio, --direct-io", _MAPPING, "", "LLAMA_ARG_DIO", "-ndio, --no-direct-io"),
    _Row("--lora-init-without-apply", "there are no LoRA adapters"),
    _Row("--check-tensors", "tensor values are not checked"),
    _Row(
        "-cb, --cont-batching",
        "requests always join running batches",
        "",
        "LLAMA_ARG_CONT_BATCHING",
        "-nocb, --no-cont-batching",
        True,
    ),
    _Row("--threads-http", "HTTP needs no threads", "N", "LLAMA_ARG_THREADS_HTTP"),
    _Row("-C, --cpu-mask", _THREADING, "M"),
    _Row("-Cr, --cpu-range", _THREADING, "lo-hi"),
    _Row("--cpu-strict", _THREADING, "<0|1>"),
    _Row("--prio", _THREADING, "N"),
    _Row("--poll", _THREADING, "<0...100>"),
    _Row("-Cb, --cpu-mask-batch", _THREADING, "M"),
    _Row("-Crb, --cpu-range-batch", _THREADING, "lo-hi"),
    _Row("--cpu-strict-batch", _THREADING, "<0|1>"),
    _Row("--prio-batch", _THREADING, "N"),
    _Row("--poll-batch", _THREADING, "<0|1>"),
    _Row("--numa", _THREADING, "TYPE", "LLAMA_ARG_NUMA"),
    _Row("--perf", "timings are always kept", "", "LLAMA_ARG_PERF", "--no-perf"),
    _Row(
        "-dt, --defrag-thold", "the cache needs no defragmentation", "N", "LLAMA_ARG_DEFRAG_THOLD"
    ),
    _Row(
        "-bs, --backend-sampling",
        "tokens are chosen on this machine, with the same result",
        env="LLAMA_ARG_BACKEND_SAMPLING",
    ),
    _Row("--kv-unified-per-slot", "use -c and -np", "N", "LLAMA_ARG_KV_UNIFIED_PER_SLOT"),
    _Row(
        "-ctxcp, --ctx-checkpoints, --swa-checkpoints", _CACHING, "N", "LLAMA_ARG_CTX_CHECKPOINTS"
    ),
    _Row("-cms, --checkpoint-min-step", _CACHING, "N", "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT"),
    _Row("--cache-reuse", _CACHING, "N", "LLAMA_ARG_CACHE_REUSE"),
    _Row(
        "--reasoning-preserve",
        _REASONING,
        "",
        "LLAMA_ARG_REASONING_PRESERVE",
        "--no-reasoning-preserve",
        True,
    ),
    _Row("--log-jsonl", _LOGGING, "", "LLAMA_ARG_LOG_JSONL", "--no-log-jsonl"),
    _Row("--log-colors", _LOGGING, "[on|off|auto]", "LLAMA_ARG_LOG_COLORS", default="auto"),
    _Row("--log-prefix", _LOGGING, "", "LLAMA_ARG_LOG_PREFIX", "--no-log-prefix"),
    _Row("--log-timestamps", _LOGGING, "", "LLAMA_ARG_LOG_TIMESTAMPS", "--no-log-timestamps"),
    _Row("--log-prompts-dir", "prompts are not written to files", "PATH"),
    _Row("--path", _PAGE, "PATH", "LLAMA_ARG_STATIC_PATH"),
    _Row("--ui-config, --webui-config", _PAGE, "JSON", "LLAMA_ARG_UI_CONFIG"),
    _Row("--ui-config-file, --webui-config-file", _PAGE, "PATH", "LLAMA_ARG_UI_CONFIG_FILE"),
    _Row("--tools", _PAGE, "TOOL1,TOOL2,...", "LLAMA_ARG_TOOLS"),
    _Row("--tools-runtime", _PAGE, "OPTION", "LLAMA_ARG_TOOLS_RUNTIME"),
    _Row("--mcp-servers-config", _PAGE, "PATH", "LLAMA_ARG_MCP_SERVERS_CONFIG"),
    _Row("--mcp-servers-json", _PAGE, "JSON", "LLAMA_ARG_MCP_SERVERS_JSON"),
    _Row("-ag, --agent", _PAGE, "", "LLAMA_ARG_AGENT", "-no-ag, --no-agent"),
    _Row("--models-dir", _ROUTING, "PATH", "LLAMA_ARG_MODELS_DIR"),
    _Row("--models-preset", _ROUTING, "PATH", "LLAMA_ARG_MODELS_PRESET"),
    _Row("--models-max", _ROUTING, "N", "LLAMA_ARG_MODELS_MAX"),
    _Row(
        "--models-autoload", _ROUTING, "", "LLAMA_ARG_MODELS_AUTOLOAD", "--no-models-autoload", True
    ),
    _Row("-mm, --mmproj", _MEDIA, "FILE", "LLAMA_ARG_MMPROJ"),
    _Row("-mmu, --mmproj-url", _MEDIA, "URL", "LLAMA_ARG_MMPROJ_URL"),
    _Row("--mmproj-auto", _MEDIA, "", "LLAMA_ARG_MMPROJ_AUTO", "--no-mmproj, --no-mmproj-auto"),
    _Row("--mmproj-offload", _MEDIA, "", "LLAMA_ARG_MMPROJ_OFFLOAD", "--no-mmproj-offload", True),
    _Row("-mmdev, --mmproj-device", _MEDIA, "DEVICE", "MTMD_BACKEND_DEVICE"),
    _Row("--image-min-tokens", _MEDIA, "N", "LLAMA_ARG_IMAGE_MIN_TOKENS"),
    _Row("--image-max-tokens", _MEDIA, "N", "LLAMA_ARG_IMAGE_MAX_TOKENS"),
    _Row("--mtmd-batch-max-tokens", _MEDIA, "N", "LLAMA_ARG_MTMD_BATCH_MAX_TOKENS"),
    _Row("--video-fps", _MEDIA, "N", "LLAMA_ARG_VIDEO_FPS"),
    _Row("--video-timestamp-interval", _MEDIA, "N", "LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL"),
    _Row("--video-ffmpeg-dir", _MEDIA, "DIR", "LLAMA_ARG_VIDEO_FFMPEG_DIR"),
    _Row("--media-path", _MEDIA, "PATH"),
    _Row("-lcs, --lookup-cache-static", _SPECULATION, "FNAME"),
    _Row("-lcd, --lookup-cache-dynamic", _SPECULATION, "FNAME"),
    _Row("--draft, --draft-n, --draft-max", _SPECULATION, "N", "LLAMA_ARG_DRAFT_MAX"),
    _Row("--draft-min, --draft-n-min", _SPECULATION, "N", "LLAMA_ARG_DRAFT_MIN"),
    _Row("--spec-type", _SPECULATION, "TYPES", "LLAMA_ARG_SPEC_TYPE", default="none"),
    _Row("--spec-default", _SPECULATION),
    _Row(
        "--spec-draft-model, -md, --model-draft",
        _SPECULATION,
        "FNAME",
        "LLAMA_ARG_SPEC_DRAFT_MODEL",
    ),
    _Row(
        "--spec-draft-hf, -hfd, -hfrd, --hf-repo-draft",
        _SPECULATION,
        "REPO",
        "LLAMA_ARG_SPEC_DRAFT_HF_REPO",
    ),
    _Row(
        "--spec-draft-cpu-moe, -cmoed, --cpu-moe-draft",
        _SPECULATION,
        env="LLAMA_ARG_SPEC_DRAFT_CPU_MOE",
    ),
    _Row(
        "--spec-draft-backend-sampling",
        _SPECULATION,
        "",
        "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING",
        "--no-spec-draft-backend-sampling",
        True,
    ),
)

_SPECULATIVE_NUMBERS: Final = (
    ("--spec-draft-n-max", "LLAMA_ARG_SPEC_DRAFT_N_MAX"),
    ("--spec-draft-n-min", "LLAMA_ARG_SPEC_DRAFT_N_MIN"),
    ("--spec-draft-p-min, --draft-p-min", "LLAMA_ARG_SPEC_DRAFT_P_MIN"),
    ("--spec-draft-p-split, --draft-p-split", "LLAMA_ARG_SPEC_DRAFT_P_SPLIT"),
    ("--spec-draft-device, -devd, --device-draft", ""),
    (
        "--spec-draft-ngl, -ngld, --gpu-layers-draft, --n-gpu-layers-draft",
        "LLAMA_ARG_N_GPU_LAYERS_DRAFT",
    ),
    ("--spec-draft-type-k, -ctkd, --cache-type-k-draft", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K"),
    ("--spec-draft-type-v, -ctvd, --cache-type-v-draft", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V"),
    ("--spec-draft-threads, -td, --threads-draft", ""),
    ("--spec-draft-threads-batch, -tbd, --threads-batch-draft", ""),
    ("--spec-draft-cpu-mask, -Cd, --cpu-mask-draft", ""),
    ("--spec-draft-cpu-range, -Crd, --cpu-range-draft", ""),
    ("--spec-draft-cpu-strict, --cpu-strict-draft", ""),
    ("--spec-draft-prio, --prio-draft", ""),
    ("--spec-draft-poll, --poll-draft", ""),
    ("--spec-draft-cpu-mask-batch, -Cbd, --cpu-mask-batch-draft", ""),
    ("--spec-draft-cpu-strict-batch, --cpu-strict-batch-draft", ""),
    ("--spec-draft-prio-batch, --prio-batch-draft", ""),
    ("--spec-draft-poll-batch, --poll-batch-draft", ""),
    ("--spec-draft-override-tensor, -otd, --override-tensor-draft", ""),
    (
        "--spec-draft-n-cpu-moe, --spec-draft-ncmoe, -ncmoed, --n-cpu-moe-draft",
        "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
    ),
    ("--spec-draft-sampling", "LLAMA_ARG_SPEC_DRAFT_SAMPLING"),
    ("--spec-synth-len", "LLAMA_ARG_SPEC_SYNTH_LEN"),
    ("--spec-synth-rates", "LLAMA_ARG_SPEC_SYNTH_RATES"),
    *(
        (f"--spec-ngram-{name}", "")
        for name in (
            "mod-n-min",
            "mod-n-max",
            "mod-n-match",
            "simple-size-n",
            "simple-size-m",
            "simple-min-hits",
            "map-k-size-n",
            "map-k-size-m",
            "map-k-min-hits",
            "map-k4v-size-n",
            "map-k4v-size-m",
            "map-k4v-min-hits",
            "size-n",
            "size-m",
            "min-hits",
        )
    ),
)

_REFUSED: Final = (
    _Row("--lora", "there are no LoRA adapters", "FNAME"),
    _Row("--lora-scaled", "there are no LoRA adapters", "FNAME:SCALE,..."),
    _Row("--control-vector", "there are no control vectors", "FNAME"),
    _Row("--control-vector-scaled", "there are no control vectors", "FNAME:SCALE,..."),
    _Row("--control-vector-layer-range", "there are no control vectors", "START END"),
    _Row("--grp-attn-n", "there is no self-extend", "N"),
    _Row("--grp-attn-w", "there is no self-extend", "N"),
    _Row(
        "-mu, --model-url", "download the file and use -m, or use -hf", "URL", "LLAMA_ARG_MODEL_URL"
    ),
    _Row("-dr, --docker-repo", "use -hf or -m", "REPO", "LLAMA_ARG_DOCKER_REPO"),
    *(
        _Row(f"--{name}", "name the model with -hf or -m")
        for name in (
            "embd-gemma-default",
            "fim-qwen-1.5b-default",
            "fim-qwen-3b-default",
            "fim-qwen-7b-default",
            "fim-qwen-7b-spec",
            "fim-qwen-14b-spec",
            "fim-qwen-30b-default",
            "gpt-oss-20b-default",
            "gpt-oss-120b-default",
            "vision-gemma-4b-default",
            "vision-gemma-12b-default",
        )
    ),
)


def _names(listed: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def _option(row: _Row, status: Status) -> Option:
    names = _names(row.names)
    is_switch = not row.metavar
    return Option(
        dest=f"{status.name.lower()}:{names[0]}",
        names=names,
        help=row.note,
        read=None if is_switch else row.read,
        metavar=row.metavar,
        off_names=_names(row.off),
        env=row.env,
        default=(row.default or False) if is_switch else row.default,
        repeat=Repeat.LAST,
        status=status,
        note=row.note,
    )


IGNORED: Final = Group(
    "accepted, without effect",
    (
        *(_option(row, Status.IGNORED) for row in _IGNORED),
        *(
            _option(_Row(names, _SPECULATION, "X", env), Status.IGNORED)
            for names, env in _SPECULATIVE_NUMBERS
        ),
    ),
)
REFUSED: Final = Group("refused", tuple(_option(row, Status.REFUSED) for row in _REFUSED))
