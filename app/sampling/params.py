"""Every sampling parameter, declared once.

`SamplingParams` is the table: each field has a default and a `Param` with its kind (type, range,
clamped or refused), its other names in a request, its command line flags and its help.
Validation, the command line, `generation_settings` and the documentation read from `PARAMS`. Names,
defaults and ranges are those of llama-server's request options (tools/server/server-schema.cpp).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final, TypeVar

from app.errors import RequestError
from app.sampling.flags import Flag, biases, breakers, last_names, last_number, last_text
from app.sampling.kinds import F32_MAX, Integer, JsonValue, Kind, Real, Seed, Switch, float32, short
from app.sampling.list_kinds import Biases, Breakers, Samplers, TokenBias
from app.sampling.rng import RANDOM_SEED

T = TypeVar("T")

_SHARE: Final = Real(0.0, 1.0, clamp=True)
_PARAM: Final = "param"


@dataclass(frozen=True, slots=True)
class Param:
    """What is known about a parameter besides its default; `in_short` is llama-server's choice of
    what /props and /slots show.
    """

    name: str
    kind: Kind
    help: str
    aliases: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    in_short: bool = True


def _param(
    default: T,
    kind: Kind,
    help: str,
    *flag_names: str,
    env: str | None = None,
    flags: tuple[Flag, ...] = (),
    aliases: tuple[str, ...] = (),
    in_short: bool = True,
) -> T:
    own = (Flag(flag_names, "N", last_number, env),) if flag_names else ()
    row = Param("", kind, help, aliases, own + flags, in_short)
    return field(default=default, metadata={_PARAM: row})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Built by params_from_request or with good values: not validated."""

    seed: int = _param(RANDOM_SEED, Seed(), "RNG seed, -1 for a random one", "-s", "--seed")
    temperature: float = _param(
        0.8,
        Real(0.0, clamp=True),
        "temperature, 0 for the most probable token",
        "--temp",
        "--temperature",
        env="LLAMA_ARG_TEMPERATURE",
    )
    dynatemp_range: float = _param(
        0.0,
        Real(),
        "temperature follows the entropy within ± this range, 0 to disable",
        "--dynatemp-range",
    )
    dynatemp_exponent: float = _param(
        1.0, Real(), "how the entropy maps to the dynamic temperature", "--dynatemp-exp"
    )
    top_k: int = _param(
        40,
        Integer(clamp=True),
        "keep the k most probable tokens, 0 to disable",
        "--top-k",
        env="LLAMA_ARG_TOP_K",
    )
    top_p: float = _param(
        0.95,
        _SHARE,
        "keep the most probable tokens that make up this probability, 1 to disable",
        "--top-p",
        env="LLAMA_ARG_TOP_P",
    )
    min_p: float = _param(
        0.05,
        _SHARE,
        "keep tokens with at least this share of the best one's probability, 0 to disable",
        "--min-p",
        env="LLAMA_ARG_MIN_P",
    )
    top_n_sigma: float = _param(
        -1.0,
        Real(),
        "keep tokens within n standard deviations of the best logit, 0 or less to disable",
        "--top-nsigma",
        "--top-n-sigma",
    )
    xtc_probability: float = _param(
        0.0, _SHARE, "chance that XTC removes tokens, 0 to disable", "--xtc-probability"
    )
    xtc_threshold: float = _param(
        0.1,
        _SHARE,
        "probability from which XTC removes tokens, above 0.5 to disable",
        "--xtc-threshold",
    )
    typical_p: float = _param(
        1.0, Real(), "locally typical sampling, 1 to disable", "--typical", "--typical-p"
    )
    repeat_last_n: int = _param(
        64, Integer(), "number of last tokens to penalise, 0 to disable", "--repeat-last-n"
    )
    repeat_penalty: float = _param(
        1.0,
        Real(positive=True),
        "penalty for repeated tokens, 1 to disable",
        "--repeat-penalty",
        env="LLAMA_ARG_REPEAT_PENALTY",
    )
    presence_penalty: float = _param(
        0.0,
        Real(),
        "penalty for tokens that occurred, 0 to disable",
        "--presence-penalty",
        env="LLAMA_ARG_PRESENCE_PENALTY",
    )
    frequency_penalty: float = _param(
        0.0,
        Real(),
        "penalty for each time that a token occurred, 0 to disable",
        "--frequency-penalty",
        env="LLAMA_ARG_FREQUENCY_PENALTY",
    )
    dry_multiplier: float = _param(
        0.0, Real(), "strength of the DRY repetition penalty, 0 to disable", "--dry-multiplier"
    )
    dry_base: float = _param(
        1.75,
        Real(1.0, low_means_default=True),
        "base of the DRY penalty's growth; below 1 means the default",
        "--dry-base",
    )
    dry_allowed_length: int = _param(
        2, Integer(), "length of a repetition that DRY allows", "--dry-allowed-length"
    )
    dry_penalty_last_n: int = _param(
        64,
        Integer(),
        "number of last tokens that DRY looks at, 0 to disable",
        "--dry-penalty-last-n",
    )
    dry_sequence_breakers: tuple[str, ...] = _param(
        ("\n", ":", '"', "*"),
        Breakers(),
        'string that ends a repetition for DRY, "none" for none; may be given more than once',
        flags=(Flag(("--dry-sequence-breaker",), "STRING", breakers),),
        in_short=False,
    )
    mirostat: int = _param(
        0,
        Integer(0, 2, clamp=True),
        "0 = off, 1 = Mirostat, 2 = Mirostat 2.0; both ignore `samplers`",
        "--mirostat",
    )
    mirostat_tau: float = _param(5.0, Real(), "target entropy of Mirostat", "--mirostat-ent")
    mirostat_eta: float = _param(0.1, Real(), "learning rate of Mirostat", "--mirostat-lr")
    adaptive_target: float = _param(
        -1.0,
        Real(-F32_MAX, 1.0, clamp=True),
        "adaptive-p prefers tokens near this probability, negative to disable",
        "--adaptive-target",
    )
    adaptive_decay: float = _param(
        0.9,
        Real(0.0, 0.99),
        "how slowly adaptive-p forgets; history is about 1/(1-decay) tokens",
        "--adaptive-decay",
    )
    ignore_eos: bool = _param(
        False,
        Switch(),
        "forbid the tokens that end a generation",
        flags=(Flag(("--ignore-eos",)),),
    )
    logit_bias: tuple[TokenBias, ...] = _param(
        (),
        Biases(),
        "add to a token's logit, for instance 15043+1 or 15043-inf; may be repeated",
        flags=(Flag(("-l", "--logit-bias"), "TOKEN_ID(+/-)BIAS", biases),),
        in_short=False,
    )
    n_probs: int = _param(
        0,
        Integer(accepts_bool=True),
        "return the probabilities of this many tokens at each step",
        aliases=("logprobs",),
    )
    min_keep: int = _param(0, Integer(), "samplers leave at least this many tokens")
    samplers: tuple[str, ...] = _param(
        (
            "penalties",
            "dry",
            "top_n_sigma",
            "top_k",
            "typ_p",
            "top_p",
            "min_p",
            "xtc",
            "temperature",
        ),
        Samplers(),
        "samplers in the order of their use",
        flags=(
            Flag(("--samplers",), "SAMPLERS", last_names),
            Flag(("--sampler-seq", "--sampling-seq"), "SEQUENCE", last_text),
        ),
    )
    post_sampling_probs: bool = _param(
        False, Switch(), "n_probs are the probabilities after all samplers"
    )


PARAMS: Final[tuple[Param, ...]] = tuple(
    replace(row.metadata[_PARAM], name=row.name) for row in fields(SamplingParams)
)


def params_from_request(request: Mapping[str, object], defaults: SamplingParams) -> SamplingParams:
    """Return the defaults with what a JSON request says; null means not said, other fields of the
    request are not looked at.

    Raises: RequestError naming the field, the value and what was expected.
    """
    said: dict[str, object] = {}
    for param in PARAMS:
        for name in (param.name, *param.aliases):
            value = request.get(name)
            if value is not None:
                said[param.name] = _read(name, param, value, getattr(defaults, param.name))
                break
    change: Callable[..., SamplingParams] = replace
    return change(defaults, **said)


def _read(name: str, param: Param, value: object, default: object) -> object:
    try:
        return param.kind.read(value, default)
    except ValueError as error:
        detail = f" ({error})" if str(error) else ""
        message = f"{name}: got {short(value)}{detail}, expected {param.kind.expected}"
        raise RequestError(message, param=name) from None


def generation_settings(params: SamplingParams, in_short: bool = False) -> dict[str, JsonValue]:
    """Return the parameters as `generation_settings` shows them, or as /props and /slots do."""
    return {
        param.name: param.kind.to_json(getattr(params, param.name))
        for param in PARAMS
        if param.in_short or not in_short
    }


def as_float32(params: SamplingParams) -> SamplingParams:
    """Return the parameters with every real number rounded to float32, as the samplers use it."""
    real = [param.name for param in PARAMS if isinstance(param.kind, Real)]
    change: Callable[..., SamplingParams] = replace
    return change(params, **{name: float32(getattr(params, name)) for name in real})
