"""POST /v1/rerank, /v1/reranking, /rerank, /reranking: documents by their relevance to a query.

`documents` asks for the form of Jina, `texts` for that of Text Embeddings Inference. Follows
post_rerank of llama.cpp's tools/server/server-context.cpp (b11434); a document's score is the first
number that the model's classifier gives.
"""

import asyncio
import re
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api import fields
from app.api.body import read_object
from app.api.embed import embed
from app.api.errors import NOT_SUPPORTED, ApiError
from app.api.feed import ClientGoneError
from app.api.json_value import Json, JsonObject
from app.api.prompt import Tokens
from app.api.responses import client_gone, json_response
from app.api.service import Service
from app.errors import RequestError
from app.tokenizer.base import Tokenizer

PATHS: Final = ("/v1/rerank", "/v1/reranking", "/rerank", "/reranking")


def routes(service: Service) -> list[Route]:
    """Return the routes of this file."""

    async def rerank(request: Request) -> Response:
        if not service.settings.reranking:
            message = "This server does not support reranking. Start it with `--reranking`"
            raise ApiError(NOT_SUPPORTED, message)
        return await _answer(service, request)

    return [Route(path, rerank, methods=["POST"]) for path in PATHS]


async def _answer(service: Service, request: Request) -> Response:
    body = await read_object(request, service.settings)
    query, documents = _query(body), _documents(body)
    top_n = fields.integer(body, "top_n", len(documents), low=0)
    engine = service.engine
    template = engine.model.rerank_template

    def prompts() -> list[Tokens]:
        return [_prompt(engine.tokenizer, template, query, document) for document in documents]

    texts = await asyncio.to_thread(prompts)
    try:
        rows = await embed(engine, request, texts)
    except ClientGoneError:
        return client_gone()
    scores = [float(row[0][0]) for row in rows]
    # Documents of equal score stay in their order.
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[:top_n]
    if "texts" in body:
        has_text = fields.boolean(body, "return_text", False)
        listed: list[Json] = [
            {"index": i, "score": scores[i]} | ({"text": documents[i]} if has_text else {})
            for i in order
        ]
        return json_response(listed)
    n_tokens = sum(len(text) for text in texts)
    model = body.get("model")
    answer: JsonObject = {
        "model": model if isinstance(model, str) else service.settings.model_name,
        "object": "list",
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        "results": [{"index": i, "relevance_score": scores[i]} for i in order],
    }
    return json_response(answer)


def _query(body: JsonObject) -> str:
    query = body.get("query")
    if query is None:
        raise RequestError('"query" must be provided', "query")
    if not isinstance(query, str):
        raise RequestError('"query" must be a string', "query")
    return query


def _documents(body: JsonObject) -> tuple[str, ...]:
    name = fields.present(body, "documents", "texts") or "documents"
    documents = fields.texts(body, name)
    if not documents:
        raise RequestError(f'"{name}" must be a non-empty string array', name)
    return documents


def _prompt(tokenizer: Tokenizer, template: str | None, query: str, document: str) -> Tokens:
    """Join query and document by the model's template, or else by its special tokens."""
    if template is not None:
        values = {"{query}": query, "{document}": document}
        text = re.sub(r"\{query\}|\{document\}", lambda match: values[match[0]], template)
        return tuple(tokenizer.encode(text, add_special=False, parse_special=True))
    vocab = tokenizer.vocab
    bos, eos, sep = vocab.special.bos, vocab.special.eos, vocab.special.sep
    end = [sep if eos is None else eos] if vocab.add_eos else []
    parts = (
        [bos] if vocab.add_bos else [],
        tokenizer.encode(query, add_special=False, parse_special=False),
        end,
        [sep] if vocab.add_sep else [],
        tokenizer.encode(document, add_special=False, parse_special=False),
        end,
    )
    return tuple(token for part in parts for token in part if token is not None)
