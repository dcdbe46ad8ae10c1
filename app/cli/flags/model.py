"""Flags about which model, on which devices, and how large: they become an EngineConfig."""

from typing import Final

from app.cli.flags import readers
from app.cli.flags.option import Group, Option, Repeat

CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

MODEL: Final = Group(
    "model",
    (
        Option(
            dest="model",
            names=("-m", "--model"),
            read=readers.text,
            metavar="FNAME",
            env="LLAMA_ARG_MODEL",
            help="GGUF file to serve",
        ),
        Option(
            dest="hf_repo",
            names=("-hf", "-hfr", "--hf-repo"),
            read=readers.text,
            metavar="<user>/<model>[:quant]",
            env="LLAMA_ARG_HF_REPO",
            help="Hugging Face repository to serve from, downloaded once; quant chooses the file, "
            "else Q4_K_M, Q8_0 or the first one",
        ),
        Option(
            dest="hf_file",
            names=("-hff", "--hf-file"),
            read=readers.text,
            metavar="FILE",
            env="LLAMA_ARG_HF_FILE",
            help="file of the repository; overrides quant",
        ),
        Option(
            dest="hf_token",
            names=("-hft", "--hf-token"),
            read=readers.text,
            metavar="TOKEN",
            env="HF_TOKEN",
            help="access token for Hugging Face",
        ),
        Option(
            dest="offline",
            names=("--offline",),
            env="LLAMA_ARG_OFFLINE",
            default=False,
            help="never use the network: the model must be in the cache",
        ),
        Option(
            dest="cache_list",
            names=("-cl", "--cache-list"),
            default=False,
            help="print the models in the cache of Hugging Face and exit",
        ),
        Option(
            dest="demo",
            names=("--demo",),
            default=False,
            help="serve a small model over two workers on this machine; nothing else is needed",
        ),
        Option(
            dest="override_kv",
            names=("--override-kv",),
            read=readers.key_values,
            metavar="KEY=TYPE:VALUE,...",
            repeat=Repeat.APPEND,
            help="replace metadata of the model; types: int, float, bool, str",
        ),
    ),
)

DEVICES: Final = Group(
    "devices",
    (
        Option(
            dest="rpc",
            names=("--rpc",),
            read=readers.words,
            metavar="HOST:PORT,...",
            env="LLAMA_ARG_RPC",
            repeat=Repeat.APPEND,
            help="workers to spread the model over; may be repeated",
        ),
        Option(
            dest="devices",
            names=("-dev", "--device"),
            read=readers.words,
            metavar="DEV1,DEV2,...",
            env="LLAMA_ARG_DEVICE",
            help="devices to use, in this order; none for this machine's CPU only",
        ),
        Option(
            dest="list_devices",
            names=("--list-devices",),
            default=False,
            help="print the devices, those of --rpc too, and exit",
        ),
        Option(
            dest="gpu_layers",
            names=("-ngl", "--gpu-layers", "--n-gpu-layers"),
            read=readers.gpu_layers,
            metavar="N",
            env="LLAMA_ARG_N_GPU_LAYERS",
            help="layers to put on devices other than this machine's CPU: a number, auto or all",
        ),
        Option(
            dest="split_mode",
            names=("-sm", "--split-mode"),
            read=readers.one_of("none", "layer", "row", "tensor"),
            metavar="{none,layer}",
            env="LLAMA_ARG_SPLIT_MODE",
            default="layer",
            help="none: one device only; layer: whole layers to each device; row and tensor mean "
            "layer here",
        ),
        Option(
            dest="tensor_split",
            names=("-ts", "--tensor-split"),
            read=readers.shares,
            metavar="N0,N1,...",
            env="LLAMA_ARG_TENSOR_SPLIT",
            help="share of the model for each device, for example 3,1",
        ),
        Option(
            dest="main_gpu",
            names=("-mg", "--main-gpu"),
            read=readers.within(0),
            metavar="INDEX",
            env="LLAMA_ARG_MAIN_GPU",
            default=0,
            help="the device of --split-mode none",
        ),
        Option(
            dest="threads",
            names=("-t", "--threads"),
            read=readers.integer,
            metavar="N",
            env="LLAMA_ARG_THREADS",
            default=-1,
            help="CPU threads for generation, -1 for as many as there are cores",
        ),
        Option(
            dest="threads_batch",
            names=("-tb", "--threads-batch"),
            read=readers.integer,
            metavar="N",
            default=-1,
            help="CPU threads for prompts, -1 for the same as --threads",
        ),
        Option(
            dest="profile",
            names=("--profile",),
            default=False,
            help="time every kind of operation and print the sums of each device at the end; "
            "costs some speed",
        ),
    ),
)

SIZES: Final = Group(
    "context",
    (
        Option(
            dest="ctx_size",
            names=("-c", "--ctx-size"),
            read=readers.within(0),
            metavar="N",
            env="LLAMA_ARG_CTX_SIZE",
            default=0,
            help="tokens of context, all slots together; 0 for what the model was trained with",
        ),
        Option(
            dest="batch",
            names=("-b", "--batch-size"),
            read=readers.within(1),
            metavar="N",
            env="LLAMA_ARG_BATCH",
            default=2048,
            help="most tokens of one step",
        ),
        Option(
            dest="ubatch",
            names=("-ub", "--ubatch-size"),
            read=readers.within(1),
            metavar="N",
            env="LLAMA_ARG_UBATCH",
            default=512,
            help="most tokens that are computed at once",
        ),
        Option(
            dest="parallel",
            names=("-np", "--parallel"),
            read=readers.integer,
            metavar="N",
            env="LLAMA_ARG_N_PARALLEL",
            default=-1,
            help="slots, that is requests served at the same time; -1 for 4 that share the context",
        ),
        Option(
            dest="kv_unified",
            names=("-kvu", "--kv-unified"),
            off_names=("-no-kvu", "--no-kv-unified"),
            env="LLAMA_ARG_KV_UNIFIED",
            help="all slots share one context; default when the number of slots is automatic",
        ),
        Option(
            dest="kv_offload",
            names=("-kvo", "--kv-offload"),
            off_names=("-nkvo", "--no-kv-offload"),
            env="LLAMA_ARG_KV_OFFLOAD",
            default=True,
            help="keep each layer's cache on the layer's device",
        ),
        Option(
            dest="swa_full",
            names=("--swa-full",),
            env="LLAMA_ARG_SWA_FULL",
            default=False,
            help="sliding-window layers remember the whole context",
        ),
        Option(
            dest="cache_type_k",
            names=("-ctk", "--cache-type-k"),
            read=readers.one_of(*CACHE_TYPES),
            metavar="TYPE",
            env="LLAMA_ARG_CACHE_TYPE_K",
            default="f16",
            help="type of cached keys: f32, f16, bf16, q8_0",
        ),
        Option(
            dest="cache_type_v",
            names=("-ctv", "--cache-type-v"),
            read=readers.one_of(*CACHE_TYPES),
            metavar="TYPE",
            env="LLAMA_ARG_CACHE_TYPE_V",
            default="f16",
            help="type of cached values: f32, f16, bf16, q8_0",
        ),
        Option(
            dest="flash_attn",
            names=("-fa", "--flash-attn"),
            read=readers.on_off_auto,
            metavar="[on|off|auto]",
            env="LLAMA_ARG_FLASH_ATTN",
            default="auto",
            bare="on",
            help="attention as one fused operation",
        ),
        Option(
            dest="warmup",
            names=("--warmup",),
            off_names=("--no-warmup",),
            default=True,
            help="run once before serving",
        ),
        Option(
            dest="slot_prompt_similarity",
            names=("-sps", "--slot-prompt-similarity"),
            read=readers.number,
            metavar="SIMILARITY",
            default=0.1,
            help="share of a prompt that a slot must know already to be preferred; 0 to disable",
        ),
    ),
)

_ROPE_NUMBERS: Final = (
    ("rope_scale", "--rope-scale", "LLAMA_ARG_ROPE_SCALE", "stretch the context by this factor"),
    ("rope_freq_base", "--rope-freq-base", "LLAMA_ARG_ROPE_FREQ_BASE", "base frequency"),
    (
        "rope_freq_scale",
        "--rope-freq-scale",
        "LLAMA_ARG_ROPE_FREQ_SCALE",
        "stretch the context by 1/N",
    ),
    ("yarn_ext_factor", "--yarn-ext-factor", "LLAMA_ARG_YARN_EXT_FACTOR", "extrapolation mix"),
    ("yarn_attn_factor", "--yarn-attn-factor", "LLAMA_ARG_YARN_ATTN_FACTOR", "magnitude"),
    ("yarn_beta_slow", "--yarn-beta-slow", "LLAMA_ARG_YARN_BETA_SLOW", "high correction dimension"),
    ("yarn_beta_fast", "--yarn-beta-fast", "LLAMA_ARG_YARN_BETA_FAST", "low correction dimension"),
)

ROPE: Final = Group(
    "positions",
    (
        Option(
            dest="rope_scaling",
            names=("--rope-scaling",),
            read=readers.one_of("none", "linear", "yarn"),
            metavar="{none,linear,yarn}",
            env="LLAMA_ARG_ROPE_SCALING_TYPE",
            help="how positions are scaled; default is the model's",
        ),
        Option(
            dest="yarn_orig_ctx",
            names=("--yarn-orig-ctx",),
            read=readers.within(0),
            metavar="N",
            env="LLAMA_ARG_YARN_ORIG_CTX",
            help="context that the model was trained with",
        ),
        *(
            Option(
                dest=dest,
                names=(flag,),
                read=readers.number,
                metavar="N",
                env=env,
                help=f"RoPE: {what}; default is the model's",
            )
            for dest, flag, env, what in _ROPE_NUMBERS
        ),
    ),
)
