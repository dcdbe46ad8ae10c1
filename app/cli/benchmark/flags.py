"""The flags of llama-serve-bench: llama-bench's (b11434) and `--streams`.

A flag of a test parameter takes several values and every combination is measured. What cannot make
a difference here is accepted with a warning; what would measure something else is refused.
"""

from typing import Final

from app.cli.benchmark.readers import (
    alternatives,
    flash_attention,
    only,
    prompt_and_generation,
    ranges,
    tensor_splits,
)
from app.cli.flags import readers
from app.cli.flags.environment import ENVIRONMENT
from app.cli.flags.model import CACHE_TYPES
from app.cli.flags.option import Group, Option, Reader, Repeat, Status
from app.cli.flags.securing import SECURING

OUTPUTS: Final = ("none", "csv", "json", "jsonl", "md", "sql")

_PLACEMENT: Final = "tensors are placed by layer"
_MAPPING: Final = "files are always mapped"
_THREADING: Final = "threads are placed by the operating system"
_FITTING: Final = "a model that does not fit is refused with the reason"


def _values(names: str, read: Reader, default: str, metavar: str, text: str) -> Option:
    """A test parameter; `dest` is the last name."""
    words = tuple(names.split())
    return Option(
        dest=words[-1].lstrip("-").replace("-", "_"),
        names=words,
        read=read,
        metavar=metavar,
        default=(default,) if default else None,
        repeat=Repeat.APPEND,
        help=text,
    )


def _ignored(names: str, note: str, default: str = "") -> Option:
    words = tuple(names.split())
    return Option(
        dest=words[-1].lstrip("-").replace("-", "_"),
        names=words,
        read=readers.text,
        metavar="X",
        default=default or None,
        status=Status.IGNORED,
        note=note,
        help=note,
    )


PROGRAM: Final = Group(
    "program",
    (
        Option(dest="help", names=("-h", "--help"), default=False, help="print this and exit"),
        Option(dest="version", names=("--version",), default=False, help="print the version"),
        Option(
            dest="repetitions",
            names=("-r", "--repetitions"),
            read=readers.within(1, 1_000_000),
            metavar="N",
            default=5,
            help="how often each test is measured",
        ),
        Option(
            dest="delay",
            names=("--delay",),
            read=readers.within(0, 86_400),
            metavar="SECONDS",
            default=0,
            help="pause before each test",
        ),
        Option(
            dest="output",
            names=("-o", "--output"),
            read=readers.one_of(*OUTPUTS),
            metavar="{csv,json,jsonl,md,sql}",
            default="md",
            help="form of the results on stdout",
        ),
        Option(
            dest="output_err",
            names=("-oe", "--output-err"),
            read=readers.one_of(*OUTPUTS),
            metavar="{csv,json,jsonl,md,sql}",
            default="none",
            help="form of the results on stderr",
        ),
        Option(
            dest="list_devices",
            names=("--list-devices",),
            default=False,
            help="print the devices, those of --rpc first, and exit",
        ),
        Option(
            dest="verbose",
            names=("-v", "--verbose"),
            default=False,
            help="log, and show where the layers went",
        ),
        Option(
            dest="progress",
            names=("--progress",),
            default=False,
            help="say on stderr what is being measured",
        ),
        Option(
            dest="no_warmup",
            names=("--no-warmup",),
            default=False,
            help="do not run each test once before it is measured",
        ),
        Option(
            dest="profile",
            names=("--profile",),
            default=False,
            help="after each test, print on stderr what each kind of operation took on each "
            "device; costs some speed (llama-serve's own flag)",
        ),
        Option(
            dest="rpc",
            names=("-rpc", "--rpc"),
            read=readers.words,
            metavar="HOST:PORT,...",
            repeat=Repeat.APPEND,
            help="workers to put layers on",
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
            default=False,
            help="take Hugging Face models from the cache only",
        ),
    ),
)
PARAMETERS: Final = Group(
    "test parameters; lists a,b and ranges a-b, a-b+step, a-b*factor measure every combination",
    (
        _values("-m --model", alternatives(), "", "FILE", "GGUF file"),
        _values(
            "-hf -hfr --hf-repo", alternatives(), "", "<user>/<model>[:quant]", "model on the hub"
        ),
        _values("-hff --hf-file", alternatives(), "", "FILE", "file of the n-th -hf"),
        _values("-p --n-prompt", ranges(), "512", "N", "tokens of a prompt test (pp); 0: none"),
        _values("-n --n-gen", ranges(), "128", "N", "tokens of a generation test (tg); 0: none"),
        _values("-pg", prompt_and_generation, "", "PP,TG", "test with a prompt and a generation"),
        _values("-d --n-depth", ranges(), "0", "N", "tokens in the cache before a test starts"),
        _values(
            "--streams",
            ranges(1),
            "1",
            "N",
            "sequences that a tg test generates at once, each as long as -n says and as deep as "
            "-d; t/s is over all of them (llama-serve's own flag)",
        ),
        _values("-b --batch-size", ranges(1), "2048", "N", "tokens of a prompt per call"),
        _values("-ub --ubatch-size", ranges(1), "512", "N", "tokens that pass a stage together"),
        _values("-ctk --cache-type-k", alternatives(*CACHE_TYPES), "f16", "TYPE", "cached keys"),
        _values("-ctv --cache-type-v", alternatives(*CACHE_TYPES), "f16", "TYPE", "cached values"),
        _values("-t --threads", ranges(1), "", "N", "threads of this host's CPU (default: all)"),
        _values(
            "-ngl --n-gpu-layers", ranges(-1), "-1", "N", "layers on devices; -1: all that fit"
        ),
        _values(
            "-sm --split-mode",
            alternatives("none", "layer"),
            "layer",
            "{none,layer}",
            "all devices or only --main-gpu",
        ),
        _values("-mg --main-gpu", ranges(), "0", "INDEX", "device of --split-mode none"),
        _values("-fa --flash-attn", flash_attention, "auto", "{on,off,auto}", "fused attention"),
        _values("-dev --device", alternatives(), "auto", "DEV0/DEV1", "devices to use, or none"),
        _values("-ts --tensor-split", tensor_splits, "0", "N0/N1", "shares of the devices"),
        Option(
            dest="no_kv_offload",
            names=("-nkvo", "--no-kv-offload"),
            read=only("0", "each layer's cache lies with the layer"),
            metavar="0",
            help="only 0",
        ),
        Option(
            dest="embeddings",
            names=("-embd", "--embeddings"),
            read=only("0", "generation is measured"),
            metavar="0",
            help="only 0",
        ),
        Option(
            dest="n_cpu_moe",
            names=("-ncmoe", "--n-cpu-moe"),
            read=only("0", _PLACEMENT),
            metavar="0",
            help="only 0",
        ),
        Option(
            dest="override_tensor",
            names=("-ot", "--override-tensor"),
            read=readers.text,
            metavar="PATTERN=BUFFER",
            status=Status.REFUSED,
            note=_PLACEMENT,
            help="refused",
        ),
    ),
)
IGNORED: Final = Group(
    "accepted with a warning, without effect",
    (
        _ignored("--numa", _THREADING),
        _ignored("--prio", _THREADING, "0"),
        _ignored("-C --cpu-mask", _THREADING, "0x0"),
        _ignored("--cpu-strict", _THREADING, "0"),
        _ignored("--poll", _THREADING, "50"),
        _ignored("-fitt --fit-target", _FITTING),
        _ignored("-fitc --fit-ctx", _FITTING),
        _ignored("-lm --load-mode", _MAPPING, "auto"),
        _ignored("-lzm --lazy-mode", _MAPPING, "auto"),
        _ignored("-nopo --no-op-offload", _PLACEMENT, "0"),
        _ignored("--no-host", _PLACEMENT, "0"),
        _ignored("--repack", "weights are stored as each device likes them", "1"),
    ),
)
GROUPS: Final = (PROGRAM, PARAMETERS, SECURING, ENVIRONMENT, IGNORED)
OPTIONS: Final = tuple(option for group in GROUPS for option in group.options)
