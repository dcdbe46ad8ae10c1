"""The table of operations: one row for each endpoint, with every path that it has.

A route without a row, or a row without a route, is a mistake that tests find. Paths that only
refuse come from the table in `app.api.routes.absent`.
"""

from dataclasses import dataclass
from typing import Final

from app.api.json_value import JsonObject
from app.api.openapi.answers import FLAG, TEXT
from app.api.routes.absent import ABSENT, DISABLED
from app.engine.request import SlotDeed

JSON: Final = "application/json"
GET: Final = "get"
POST: Final = "post"


@dataclass(frozen=True, slots=True)
class Operation:
    """One endpoint; `body` and `answer` name schemas, `errors` are statuses that are its own.

    An empty `answer` means that it never succeeds. `streams` says whether `stream` makes the answer
    a sequence of events, `media_type` what the answer is otherwise.
    """

    paths: tuple[str, ...]
    summary: str
    answer: str = ""
    body: str = ""
    method: str = POST
    streams: bool = False
    media_type: str = JSON
    errors: tuple[int, ...] = ()
    query: tuple[tuple[str, JsonObject], ...] = ()
    is_public: bool = False


def _v1(*paths: str) -> tuple[str, ...]:
    """The paths as they are and under /v1."""
    return tuple(prefix + path for path in paths for prefix in ("", "/v1"))


_READS: Final = (
    Operation(_v1("/health"), "Whether the model is ready", "Health", method=GET, is_public=True),
    Operation(_v1("/models"), "The model that is served", "Models", method=GET),
    Operation(("/props",), "Facts about the server", "Props", method=GET),
    Operation(
        ("/slots",),
        "What each slot does",
        "Slots",
        method=GET,
        errors=(501,),
        query=(("fail_on_no_slot", FLAG),),
    ),
    Operation(
        ("/metrics",),
        "Counters for Prometheus",
        "Text",
        method=GET,
        media_type="text/plain",
        errors=(501,),
    ),
    Operation(("/lora-adapters",), "LoRA adapters that are loaded", "Adapters", method=GET),
    Operation(("/openapi.json",), "This document", "Object", method=GET),
)
_GENERATES: Final = (
    Operation(
        _v1("/chat/completions"), "The next message of a chat", "Chat", "ChatRequest", streams=True
    ),
    Operation(
        ("/v1/completions",),
        "What follows a text, in OpenAI's form",
        "TextCompletion",
        "CompletionRequest",
        streams=True,
    ),
    Operation(
        ("/completion", "/completions"),
        "What follows a text, in llama-server's form",
        "Completion",
        "CompletionRequest",
        streams=True,
    ),
    Operation(
        ("/infill",),
        "What goes between two texts",
        "Completion",
        "InfillRequest",
        streams=True,
        errors=(501,),
    ),
    Operation(
        _v1("/responses"), "OpenAI's Responses API", "Response", "ResponsesRequest", streams=True
    ),
    Operation(
        ("/v1/messages",), "Anthropic's Messages API", "Message", "MessagesRequest", streams=True
    ),
)
_COMPUTES: Final = (
    Operation(("/apply-template",), "The prompt that a chat makes", "Prompt", "ChatRequest"),
    Operation(
        _v1("/chat/completions/input_tokens"), "Tokens of a chat", "InputTokens", "ChatRequest"
    ),
    Operation(
        _v1("/responses/input_tokens"), "Tokens of a request", "InputTokens", "ResponsesRequest"
    ),
    Operation(
        ("/v1/messages/count_tokens",), "Tokens of a request", "CountedTokens", "MessagesRequest"
    ),
    Operation(("/tokenize",), "The tokens of a text", "Tokens", "TokenizeRequest"),
    Operation(("/detokenize",), "The text of tokens", "Content", "DetokenizeRequest"),
    Operation(
        ("/v1/embeddings",),
        "Embeddings in OpenAI's form",
        "Embeddings",
        "EmbeddingsRequest",
        errors=(501,),
    ),
    Operation(
        ("/embeddings", "/embedding"),
        "Embeddings in llama-server's form",
        "EmbeddingRows",
        "EmbeddingsRequest",
        errors=(501,),
    ),
    Operation(
        _v1("/rerank", "/reranking"),
        "Documents by their relevance",
        "Ranking",
        "RerankRequest",
        errors=(501,),
    ),
    Operation(
        ("/props",), "Change facts about the server", "Success", "ObjectRequest", errors=(501,)
    ),
    Operation(
        ("/slots/{id_slot}",),
        "Save, restore or erase what a slot holds",
        "SlotReport",
        "SlotRequest",
        errors=(501,),
        query=(("action", {"enum": [deed.value for deed in SlotDeed]}),),
    ),
    Operation(("/lora-adapters",), "Scale LoRA adapters", "Success", "AdaptersRequest"),
)
_PAGE_PARTS: Final = {
    "/": "text/html",
    "/index.html": "text/html",
    "/sw.js": "text/javascript",
    "/manifest.webmanifest": JSON,
    "/_app/version.json": JSON,
}
_PAGES: Final = tuple(
    Operation(
        (path,),
        "A file of the page",
        "Object" if media_type == JSON else "Text",
        method=GET,
        media_type=media_type,
        is_public=True,
    )
    for path, media_type in _PAGE_PARTS.items()
)
_PROXIED: Final = tuple(
    Operation(
        ("/cors-proxy",),
        "What another server answers, for pages that may not ask it",
        "Anything",
        method=method,
        media_type="*/*",
        errors=(400, 403, 413, 500),
        query=(("url", TEXT),),
    )
    for method in (GET, POST)
)
_REFUSES: Final = (
    *(
        Operation(row.paths, row.message, method=method.lower(), errors=(501,))
        for row in ABSENT
        for method in row.methods
    ),
    *(
        Operation(DISABLED, "A helper of llama-server's page", method=method, errors=(403,))
        for method in (GET, POST)
    ),
)

OPERATIONS: Final = (*_READS, *_GENERATES, *_COMPUTES, *_PAGES, *_PROXIED, *_REFUSES)
