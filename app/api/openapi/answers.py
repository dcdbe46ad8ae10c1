"""Schemas of the answers: what a client may rely on; answers may hold more."""

from typing import Final

from app.api.json_value import Json, JsonObject

TEXT: Final[JsonObject] = {"type": "string"}
WHOLE: Final[JsonObject] = {"type": "integer"}
NUMBER: Final[JsonObject] = {"type": "number"}
FLAG: Final[JsonObject] = {"type": "boolean"}
OBJECT: Final[JsonObject] = {"type": "object"}
ANYTHING: Final[JsonObject] = {}


def record(**properties: JsonObject) -> JsonObject:
    """Return the schema of an object that has all these fields."""
    return {"type": "object", "properties": {**properties}, "required": [*properties]}


def listed(items: JsonObject) -> JsonObject:
    """Return the schema of an array of such items."""
    return {"type": "array", "items": items}


def constant(value: str) -> JsonObject:
    """Return the schema of one text."""
    return {"type": "string", "const": value}


def either(*schemas: JsonObject) -> JsonObject:
    """Return the schema of what fits one of these at least."""
    choices: list[Json] = [*schemas]
    return {"anyOf": choices}


def _usage(read: str, written: str) -> JsonObject:
    return record(**{read: WHOLE, written: WHOLE})


_USAGE: Final = _usage("prompt_tokens", "completion_tokens")
_COUNTED: Final = record(prompt_tokens=WHOLE, total_tokens=WHOLE)
_GENERATED: Final = {
    "id": TEXT,
    "created": WHOLE,
    "model": TEXT,
    "system_fingerprint": TEXT,
    "usage": _USAGE,
    "timings": OBJECT,
}
_CHAT_CHOICE: Final = record(
    index=WHOLE, finish_reason=TEXT, message=record(role=constant("assistant"), content=TEXT)
)
_TEXT_CHOICE: Final = record(index=WHOLE, finish_reason=TEXT, text=TEXT)
_VECTOR: Final = record(
    object=constant("embedding"), index=WHOLE, embedding=either(listed(NUMBER), TEXT)
)
_ROWS: Final = record(index=WHOLE, embedding=listed(listed(NUMBER)))
_SCORE: Final = record(index=WHOLE, score=NUMBER)
_PLACE: Final = record(index=WHOLE, relevance_score=NUMBER)
_OPENAI_VECTORS: Final = record(
    object=constant("list"), model=TEXT, usage=_COUNTED, data=listed(_VECTOR)
)
_ERROR: Final = record(code=WHOLE, message=TEXT, type=TEXT)

ANSWERS: Final[JsonObject] = {
    "Object": OBJECT,
    "Text": TEXT,
    "Anything": ANYTHING,
    "Event": record(data=TEXT),
    "Error": record(error=_ERROR),
    "Disabled": record(error=record(message=TEXT, type=constant("feature_disabled"))),
    "Health": record(status=constant("ok")),
    "Models": record(object=constant("list"), data=listed(record(id=TEXT, object=TEXT))),
    "Props": record(default_generation_settings=OBJECT, total_slots=WHOLE, chat_template=TEXT),
    "Slots": listed(record(id=WHOLE, n_ctx=WHOLE, is_processing=FLAG)),
    "Adapters": listed(record(id=WHOLE, path=TEXT, scale=NUMBER)),
    "SlotReport": record(id_slot=WHOLE),
    "Success": record(success=FLAG),
    "Chat": record(object=constant("chat.completion"), choices=listed(_CHAT_CHOICE), **_GENERATED),
    "TextCompletion": record(
        object=constant("text_completion"), choices=listed(_TEXT_CHOICE), **_GENERATED
    ),
    "Completion": either(OBJECT, listed(OBJECT)),
    "Response": record(
        id=TEXT,
        object=constant("response"),
        status=TEXT,
        output=listed(record(type=TEXT)),
        usage=_usage("input_tokens", "output_tokens"),
    ),
    "Message": record(
        id=TEXT,
        type=constant("message"),
        role=constant("assistant"),
        content=listed(record(type=TEXT)),
        model=TEXT,
        stop_reason=TEXT,
        usage=_usage("input_tokens", "output_tokens"),
    ),
    "Prompt": record(prompt=TEXT),
    "InputTokens": record(input_tokens=WHOLE, object=constant("response.input_tokens")),
    "CountedTokens": record(input_tokens=WHOLE),
    "Tokens": record(tokens=listed(either(WHOLE, record(id=WHOLE, piece=ANYTHING)))),
    "Content": record(content=TEXT),
    "Embeddings": either(_OPENAI_VECTORS, listed(_ROWS)),
    "EmbeddingRows": listed(_ROWS),
    "Ranking": either(
        record(object=constant("list"), model=TEXT, usage=_COUNTED, results=listed(_PLACE)),
        listed(_SCORE),
    ),
}
"""Name → schema."""
