"""POST /tokenize and /detokenize."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api import fields
from app.api.body import read_object
from app.api.json_value import Json, JsonObject
from app.api.prompt import Tokens, token_ids, tokenize_mixed
from app.api.responses import json_response
from app.api.service import Service
from app.tokenizer.base import Tokenizer


def routes(service: Service) -> list[Route]:
    """Return the routes of this file."""

    async def tokenize(request: Request) -> Response:
        body = await read_object(request, service.settings)
        tokenizer = service.engine.tokenizer
        tokens = await asyncio.to_thread(_tokenize, tokenizer, body)
        with_pieces = fields.boolean(body, "with_pieces", False)
        listed: list[Json] = [
            {"id": token, "piece": _piece(tokenizer, token)} if with_pieces else token
            for token in tokens
        ]
        return json_response({"tokens": listed})

    async def detokenize(request: Request) -> Response:
        body = await read_object(request, service.settings)
        tokenizer = service.engine.tokenizer
        tokens = token_ids(tokenizer, fields.array(body, "tokens"), "tokens")
        content = await asyncio.to_thread(tokenizer.decode, tokens, special=True)
        return json_response({"content": content})

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
    ]


def _tokenize(tokenizer: Tokenizer, body: JsonObject) -> Tokens:
    if body.get("content") is None:
        return ()
    return tokenize_mixed(
        tokenizer,
        body["content"],
        "content",
        add_special=fields.boolean(body, "add_special", False),
        parse_special=fields.boolean(body, "parse_special", True),
    )


def _piece(tokenizer: Tokenizer, token: int) -> Json:
    """A token's text, or its bytes when they are no text of their own."""
    piece = tokenizer.piece(token, special=True)
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)
