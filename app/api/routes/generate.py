"""POST /completion, /v1/completions, /v1/chat/completions and what goes with chat."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api import fields
from app.api.body import read_body, read_object
from app.api.chat_request import answer_chat, prompt_of
from app.api.constraint import read_constraint
from app.api.dialects.base import Answer, Dialect
from app.api.dialects.chat import ChatDialect
from app.api.dialects.completions import CompletionsDialect
from app.api.dialects.native import NativeDialect
from app.api.jobs import generate, options_for
from app.api.json_value import parse_object
from app.api.prompt import tokenize_prompts
from app.api.responses import json_response
from app.api.service import Service
from app.errors import RequestError

T = TypeVar("T")

_LARGE_BODY_BYTES: Final = 8192


def routes(service: Service) -> list[Route]:
    """Return the routes of this file."""

    async def completion(request: Request) -> Response:
        return await _complete(service, request, NativeDialect)

    async def openai_completion(request: Request) -> Response:
        return await _complete(service, request, CompletionsDialect)

    async def chat(request: Request) -> Response:
        body = await read_object(request, service.settings)
        return await answer_chat(service, body, ChatDialect)

    async def apply_template(request: Request) -> Response:
        prompt, _ = await prompt_of(service, await read_object(request, service.settings))
        return json_response({"prompt": prompt})

    async def count_tokens(request: Request) -> Response:
        _, tokens = await prompt_of(service, await read_object(request, service.settings))
        return json_response({"input_tokens": len(tokens), "object": "response.input_tokens"})

    return [
        _post("/completion", completion),
        _post("/completions", completion),
        _post("/v1/completions", openai_completion),
        _post("/chat/completions", chat),
        _post("/v1/chat/completions", chat),
        _post("/apply-template", apply_template),
        _post("/chat/completions/input_tokens", count_tokens),
        _post("/v1/chat/completions/input_tokens", count_tokens),
    ]


def _post(path: str, endpoint: Callable[[Request], object]) -> Route:
    return Route(path, endpoint, methods=["POST"])


async def _complete(
    service: Service, request: Request, dialect: Callable[[Answer], Dialect]
) -> Response:
    data = await read_body(request, service.settings)
    body = parse_object(data)
    if fields.present(body, "prompt") is None:
        raise RequestError("'prompt' is required", "prompt")
    options = options_for(service, body)
    grammar = read_constraint(body, service.settings.defaults.grammar)
    tokenizer = service.engine.tokenizer
    prompts = await _in_thread_if(
        len(data) > _LARGE_BODY_BYTES, lambda: tokenize_prompts(tokenizer, body["prompt"])
    )
    return generate(service, options, prompts, grammar, dialect)


async def _in_thread_if(condition: bool, work: Callable[[], T]) -> T:
    """Do small work here and large work in a thread, so that other streams go on."""
    return await asyncio.to_thread(work) if condition else work()
