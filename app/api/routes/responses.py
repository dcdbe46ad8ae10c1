"""POST /v1/responses and its token count: OpenAI's Responses API."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api.body import read_object
from app.api.chat_request import answer_chat, prompt_of
from app.api.dialects.responses import ResponsesDialect
from app.api.dialects.responses_request import chat_from_responses, echo_of
from app.api.responses import json_response
from app.api.service import Service


def routes(service: Service) -> list[Route]:
    """Return the routes of this file."""

    async def respond(request: Request) -> Response:
        body = await read_object(request, service.settings)
        echo = echo_of(body)
        return await answer_chat(
            service,
            chat_from_responses(body),
            lambda answer, parsing: ResponsesDialect(answer, parsing, echo),
        )

    async def count_tokens(request: Request) -> Response:
        body = await read_object(request, service.settings)
        _, tokens = await prompt_of(service, chat_from_responses(body))
        return json_response({"input_tokens": len(tokens), "object": "response.input_tokens"})

    return [
        Route(f"{version}/responses{path}", endpoint, methods=["POST"])
        for version in ("", "/v1")
        for path, endpoint in (("", respond), ("/input_tokens", count_tokens))
    ]
