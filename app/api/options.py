"""The options of a completion request that are not about sampling: one table, read once.

Used by every endpoint that generates. Names, aliases, order of precedence and limits are those of
make_llama_cmpl_schema in llama.cpp's tools/server/server-schema.cpp; sampling parameters have their
own table in `app.sampling.params`. Unknown fields are ignored, as clients add their own; known
fields that this server cannot honour are refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from app.api import fields
from app.api.fields import INT32_MAX
from app.api.json_value import Json, JsonObject
from app.api.settings import RequestDefaults
from app.errors import RequestError
from app.sampling.params import SamplingParams, params_from_request


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How to generate and what to tell about it; see the table in llama-server's README."""

    sampling: SamplingParams
    stop: tuple[str, ...]
    n_predict: int
    n_keep: int
    n_discard: int
    n_indent: int
    n_cmpl: int
    t_max_predict_ms: int
    id_slot: int
    cache_prompt: bool
    stream: bool
    include_usage: bool
    return_tokens: bool
    return_progress: bool
    timings_per_token: bool
    sse_ping_interval_s: int
    response_fields: tuple[str, ...]
    verbose: bool


@dataclass(frozen=True, slots=True)
class Whole:
    """One integer option: its names in order of precedence, and its limits."""

    names: tuple[str, ...]
    low: int = 0
    high: int = INT32_MAX


WHOLE: Final[Mapping[str, Whole]] = {
    "n_predict": Whole(("n_predict", "max_completion_tokens", "max_tokens"), low=-1),
    "n_keep": Whole(("n_keep",), low=-1),
    "n_discard": Whole(("n_discard",)),
    "n_indent": Whole(("n_indent",)),
    "n_cmpl": Whole(("n_cmpl", "n"), low=1),
    "t_max_predict_ms": Whole(("t_max_predict_ms",), low=-1),
    "id_slot": Whole(("id_slot",), low=-1),
    "sse_ping_interval": Whole(("sse_ping_interval",), low=-1),
}

_NOTHING: Final[tuple[Json, ...]] = (None, False, "", [], {})


def is_nothing(value: Json) -> bool:
    """Return whether a value is absent or empty."""
    return value in _NOTHING


def is_one(value: Json) -> bool:
    """Return whether a value is absent, or asks for one at most."""
    return value in (None, 0, 1, False)


def _is_automatic(value: Json) -> bool:
    return value in (None, "none", "auto")


def _is_text(value: Json) -> bool:
    return value in (None, [], ["text"])


Refusals = Mapping[str, tuple[Callable[[Json], bool], str]]
"""Field → whether a value asks for nothing, and why any other value is refused."""

REFUSED: Final[Refusals] = {
    "lora": (is_nothing, "LoRA adapters are not supported"),
    "grammar_lazy": (is_nothing, "lazy grammars are not supported"),
    "grammar_triggers": (is_nothing, "lazy grammars are not supported"),
    "echo": (is_nothing, "echoing the prompt is not supported"),
    "suffix": (is_nothing, "use /infill to complete between two texts"),
    "best_of": (is_one, "use n to get several completions"),
    "functions": (is_nothing, "use tools to offer functions"),
    "function_call": (_is_automatic, "use tool_choice to demand a call"),
    "modalities": (_is_text, "answers are text only"),
    "audio": (is_nothing, "answers are text only"),
    "image_data": (is_nothing, "models take text only"),
    "web_search_options": (is_nothing, "nothing is searched for"),
}
"""What no endpoint can honour."""


def read_options(body: JsonObject, defaults: RequestDefaults, n_slots: int) -> RequestOptions:
    """Return the options of a request.

    Raises: RequestError naming the field, when one is wrong or cannot be honoured.
    """
    refuse(body, REFUSED)
    return RequestOptions(
        sampling=params_from_request(body, defaults.sampling),
        stop=_stop(body, defaults.stop),
        n_predict=_whole(body, "n_predict", defaults.n_predict),
        n_keep=_whole(body, "n_keep", defaults.n_keep),
        n_discard=_whole(body, "n_discard", 0),
        n_indent=_whole(body, "n_indent", 0),
        n_cmpl=_whole(body, "n_cmpl", 1, high=n_slots),
        t_max_predict_ms=_whole(body, "t_max_predict_ms", -1),
        id_slot=_whole(body, "id_slot", -1),
        cache_prompt=fields.boolean(body, "cache_prompt", defaults.cache_prompt),
        stream=fields.boolean(body, "stream", False),
        include_usage=fields.boolean(
            fields.mapping(body, "stream_options"), "include_usage", False
        ),
        return_tokens=fields.boolean(body, "return_tokens", False),
        return_progress=fields.boolean(body, "return_progress", False),
        timings_per_token=fields.boolean(body, "timings_per_token", False),
        sse_ping_interval_s=_whole(body, "sse_ping_interval", defaults.sse_ping_interval_s),
        response_fields=fields.texts(body, "response_fields"),
        verbose=fields.boolean(body, "verbose", defaults.verbose),
    )


def refuse(body: JsonObject, refusals: Refusals) -> None:
    """Raise the RequestError for the first field of a request that asks for what is refused."""
    for name, (asks_for_nothing, reason) in refusals.items():
        if not asks_for_nothing(body.get(name)):
            raise RequestError(f"'{name}': {reason}", name)


def _whole(body: JsonObject, option: str, default: int, high: int | None = None) -> int:
    row = WHOLE[option]
    name = fields.present(body, *row.names)
    if name is None:
        return default
    return fields.integer(body, name, default, row.low, row.high if high is None else high)


def _stop(body: JsonObject, default: tuple[str, ...]) -> tuple[str, ...]:
    """Stop strings of the request, or the default when it has none that are not empty."""
    value = body.get("stop")
    given = (value,) if isinstance(value, str) else fields.texts(body, "stop")
    return tuple(text for text in given if text) or default
