"""POST /v1/embeddings, and llama-server's own /embeddings and /embedding.

Follows handle_embeddings_impl of llama.cpp's tools/server/server-context.cpp (b11434): `content`
instead of `input` asks for the native form, whose embeddings are lists of rows.
"""

import asyncio
import base64
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api import fields
from app.api.body import read_object
from app.api.embed import Rows, embed, normalized
from app.api.errors import INVALID_REQUEST, NOT_SUPPORTED, ApiError
from app.api.feed import ClientGoneError
from app.api.json_value import Json, JsonObject, type_name
from app.api.prompt import Tokens, is_id, one_prompt
from app.api.responses import client_gone, json_response
from app.api.service import Service
from app.errors import RequestError
from app.models.hparams import Pooling
from app.tokenizer.base import Tokenizer

MAX_INPUTS: Final = 2048


def routes(service: Service) -> list[Route]:
    """Return the routes of this file."""

    async def openai(request: Request) -> Response:
        return await _answer(service, request, is_openai=True)

    async def native(request: Request) -> Response:
        return await _answer(service, request, is_openai=False)

    paths = {"/v1/embeddings": openai, "/embeddings": native, "/embedding": native}
    return [Route(path, endpoint, methods=["POST"]) for path, endpoint in paths.items()]


async def _answer(service: Service, request: Request, *, is_openai: bool) -> Response:
    settings, engine = service.settings, service.engine
    if not settings.embeddings:
        message = "This server does not support embeddings. Start it with `--embeddings`"
        raise ApiError(NOT_SUPPORTED, message)
    if is_openai and engine.model.pooling is Pooling.NONE:
        raise ApiError(
            INVALID_REQUEST,
            "Pooling type 'none' is not OAI compatible. Please use a different pooling type",
        )
    body = await read_object(request, settings)
    name = fields.present(body, "input", "content")
    if name is None:
        raise RequestError('"input" or "content" must be provided', "input")
    as_base64 = _reads_base64(body)
    _check_dimensions(body, engine.model.n_embd)
    norm = fields.integer(body, "embd_normalize", settings.embd_normalize, low=-1)
    texts = await asyncio.to_thread(_tokenized, engine.tokenizer, body[name], name)
    try:
        vectors = await embed(engine, request, texts)
    except ClientGoneError:
        return client_gone()
    if engine.model.pooling is not Pooling.NONE:
        vectors = [normalized(rows, norm) for rows in vectors]
    if not is_openai or name == "content":
        return json_response(_native(vectors))
    model = body.get("model")
    shown = model if isinstance(model, str) else settings.model_name
    return json_response(_openai(vectors, texts, shown, as_base64=as_base64))


def _reads_base64(body: JsonObject) -> bool:
    encoding = fields.text(body, "encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise RequestError(
            "The format to return the embeddings in. Can be either float or base64",
            "encoding_format",
        )
    return encoding == "base64"


def _check_dimensions(body: JsonObject, n_embd: int) -> None:
    """Refuse to shorten embeddings: few models are made for it."""
    wanted = fields.integer(body, "dimensions", n_embd)
    if wanted != n_embd:
        message = f"'dimensions' is {wanted}: expected {n_embd}, the size of this model's"
        raise RequestError(message, "dimensions")


def _tokenized(tokenizer: Tokenizer, value: Json, name: str) -> list[Tokens]:
    """The ids of every text; an array with numbers in it is one text."""
    if isinstance(value, list) and not any(is_id(item) for item in value):
        if not value:
            raise RequestError(f'"{name}" must not be empty', name)
        if len(value) > MAX_INPUTS:
            raise RequestError(
                f"{len(value)} texts are too many for one request: expected up to {MAX_INPUTS}",
                name,
            )
        texts = [_one_text(tokenizer, item, name) for item in value]
    else:
        texts = [_one_text(tokenizer, value, name)]
    if not all(texts):
        raise RequestError("Input content cannot be empty", name)
    return texts


def _one_text(tokenizer: Tokenizer, value: Json, name: str) -> Tokens:
    if isinstance(value, dict) and "content" in value:
        joined = "".join(_part(part) for part in _parts(value["content"]))
        return one_prompt(tokenizer, joined, name)
    return one_prompt(tokenizer, value, name)


def _parts(content: Json) -> list[Json]:
    if not isinstance(content, list):
        raise RequestError(f"'content' must be an array, not {type_name(content)}", "content")
    return content


def _part(part: Json) -> str:
    """The text of one part of a message."""
    if not isinstance(part, dict) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, dict) else part
        raise RequestError(f"unsupported content[].type {kind!r:.40}: expected 'text'", "content")
    return fields.text(part, "text", "")


def _native(vectors: list[Rows]) -> list[Json]:
    return [{"index": i, "embedding": rows.tolist()} for i, rows in enumerate(vectors)]


def _openai(vectors: list[Rows], texts: list[Tokens], model: str, *, as_base64: bool) -> JsonObject:
    data: list[Json] = []
    for i, rows in enumerate(vectors):
        entry: JsonObject = {"embedding": rows[0].tolist(), "index": i, "object": "embedding"}
        if as_base64:
            packed = base64.b64encode(rows[0].astype("<f4").tobytes()).decode()
            entry |= {"embedding": packed, "encoding_format": "base64"}
        data.append(entry)
    n_tokens = sum(len(text) for text in texts)
    return {
        "model": model,
        "object": "list",
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        "data": data,
    }
