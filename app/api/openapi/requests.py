"""Schemas of the bodies, made from the tables that bodies are read by.

A null is the same as an absent field everywhere, and unknown fields are ignored.
"""

from typing import Final

from app.api.json_value import Json, JsonObject
from app.api.openapi.answers import ANYTHING, OBJECT, TEXT, WHOLE, constant, either, listed, record
from app.api.options import WHOLE as WHOLE_OPTIONS
from app.sampling.kinds import Integer, Kind, Real
from app.sampling.list_kinds import SAMPLER_LETTERS, Biases, Breakers, Samplers
from app.sampling.params import PARAMS

_NULL: Final[JsonObject] = {"type": "null"}
_SWITCHES: Final = (
    "stream",
    "cache_prompt",
    "return_tokens",
    "return_progress",
    "timings_per_token",
    "verbose",
)
_CHAT_SWITCHES: Final = ("logprobs", "parallel_tool_calls", "add_generation_prompt")
_OF_LISTS: Final[dict[type[Kind], JsonObject]] = {
    Samplers: either({"type": "array", "items": {"enum": [*SAMPLER_LETTERS]}}, TEXT),
    Breakers: {"type": "array", "items": TEXT, "minItems": 1},
    Biases: either(listed(listed(ANYTHING)), OBJECT),
}
_WORDS: Final = either(TEXT, listed(TEXT))
_PARTS: Final = listed(record(type=constant("text"), text=TEXT))
_MESSAGE: Final = record(
    role={"enum": ["system", "user", "assistant"]}, content=either(TEXT, _PARTS)
)
_FUNCTION: Final = record(name=TEXT, parameters=OBJECT)
_MESSAGES: Final = listed(_MESSAGE)
_HELLO: Final[JsonObject] = {"role": "user", "content": "Hello!"}


def _body(
    optional: JsonObject, example: JsonObject, required: JsonObject | None = None
) -> JsonObject:
    """An object whose optional fields may be null."""
    properties: JsonObject = {name: {"anyOf": [s, _NULL]} for name, s in optional.items()}
    needed = required or {}
    return {
        "type": "object",
        "properties": {**needed, **properties},
        "required": [*needed],
        "example": example,
    }


def _kind(kind: Kind) -> JsonObject:
    """The schema of a sampling parameter: its limits only where they are not clamped to."""
    if (of_list := _OF_LISTS.get(type(kind))) is not None:
        return of_list
    schema: JsonObject = {"type": kind.json_type}
    if isinstance(kind, Integer | Real) and not kind.clamp:
        schema |= {"minimum": kind.low, "maximum": kind.high}
    return schema


def _options() -> JsonObject:
    """What every request that generates may hold."""
    options: JsonObject = {}
    for row in WHOLE_OPTIONS.values():
        limits: JsonObject = {"type": "integer", "minimum": row.low, "maximum": row.high}
        options |= dict.fromkeys(row.names, limits)
    for param in PARAMS:
        schema = _kind(param.kind) | {"description": f"{param.help}: {param.kind.expected}"}
        options |= dict.fromkeys((param.name, *param.aliases), schema)
    options |= {name: {"type": "boolean"} for name in _SWITCHES}
    options["stop"] = _WORDS
    options["stream_options"] = {"type": "object", "properties": {"include_usage": _FLAG}}
    options["response_fields"] = listed(TEXT)
    return options


_FLAG: Final[JsonObject] = {"type": "boolean"}
_OPTIONS: Final = _options()
_FORMAT: Final[JsonObject] = {
    "grammar": TEXT,
    "json_schema": OBJECT,
    "response_format": record(type={"enum": ["text", "json_object", "json_schema"]}),
}
_CHAT: Final[JsonObject] = {
    **{name: value for name, value in _OPTIONS.items() if name not in _CHAT_SWITCHES},
    **_FORMAT,
    **dict.fromkeys(_CHAT_SWITCHES, _FLAG),
    "top_logprobs": {"type": "integer", "minimum": 0},
    "tools": listed(record(type=constant("function"), function=_FUNCTION)),
    "tool_choice": either({"enum": ["none", "auto", "required"]}, OBJECT),
    "chat_template_kwargs": OBJECT,
    "reasoning_effort": TEXT,
    "reasoning_format": {"enum": ["none", "auto", "deepseek", "deepseek-legacy"]},
    "continue_final_message": _FLAG,
}
_PROMPT: Final[JsonObject] = {"prompt": either(TEXT, listed(either(TEXT, WHOLE)))}
_GAP: Final[JsonObject] = {"input_prefix": TEXT, "input_suffix": TEXT}


def _example(**fields: Json) -> JsonObject:
    return {**fields}


REQUESTS: Final[JsonObject] = {
    "ChatRequest": _body(_CHAT, _example(messages=[_HELLO], max_tokens=4), {"messages": _MESSAGES}),
    "CompletionRequest": _body(
        _OPTIONS | _FORMAT, _example(prompt="Once upon a time", n_predict=4), _PROMPT
    ),
    "InfillRequest": _body(
        _OPTIONS | _FORMAT | {"prompt": TEXT, "input_extra": listed(record(text=TEXT))},
        _example(input_prefix="def f(", input_suffix="return x", n_predict=4),
        _GAP,
    ),
    "ResponsesRequest": _body(
        {
            "instructions": TEXT,
            "max_output_tokens": WHOLE,
            "temperature": {"type": "number"},
            "stream": _FLAG,
            "tools": listed(record(type=constant("function"), name=TEXT, parameters=OBJECT)),
        },
        _example(input="Hello!", max_output_tokens=4),
        {"input": either(TEXT, _MESSAGES)},
    ),
    "MessagesRequest": _body(
        {
            "system": either(TEXT, _PARTS),
            "max_tokens": WHOLE,
            "temperature": {"type": "number"},
            "stream": _FLAG,
            "stop_sequences": listed(TEXT),
            "tools": listed(record(name=TEXT, input_schema=OBJECT)),
        },
        _example(messages=[_HELLO], max_tokens=4),
        {"messages": _MESSAGES},
    ),
    "ObjectRequest": OBJECT,
    "AdaptersRequest": listed(record(id=WHOLE, scale={"type": "number"})),
    "SlotRequest": _body({"filename": TEXT}, _example(filename="a.bin")),
    "TokenizeRequest": _body(
        {"content": TEXT, "add_special": _FLAG, "parse_special": _FLAG, "with_pieces": _FLAG},
        _example(content="Hello!"),
    ),
    "DetokenizeRequest": _body({"tokens": listed(WHOLE)}, _example(tokens=[1, 2])),
    "EmbeddingsRequest": _body(
        {
            "input": either(TEXT, listed(TEXT)),
            "content": either(TEXT, listed(TEXT)),
            "encoding_format": {"enum": ["float", "base64"]},
            "embd_normalize": {"type": "integer", "minimum": -1},
        },
        _example(input="Hello!"),
    ),
    "RerankRequest": _body(
        {
            "query": TEXT,
            "documents": listed(TEXT),
            "texts": listed(TEXT),
            "top_n": {"type": "integer", "minimum": 0},
            "return_text": _FLAG,
        },
        _example(query="tea", documents=["A cup.", "A dog."]),
    ),
}
"""Name → schema."""
