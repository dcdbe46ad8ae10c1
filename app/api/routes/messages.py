"""POST /v1/messages and its token count: Anthropic's Messages API."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api.body import read_object
from app.api.chat_request import answer_chat, prompt_of
from app.api.dialects.messages import MessagesDialect
from app.api.dialects.messages_request import chat_from_messages
from app.api.responses import json_response
from app.api.service import Service


def routes(service: Service) -> list[Route]:
    """Return the routes of this file."""

    async def message(request: Request) -> Response:
        body = await read_object(request, service.settings)
        return await answer_chat(service, chat_from_messages(body), MessagesDialect)

    async def count_tokens(request: Request) -> Response:
        body = await read_object(request, service.settings)
        _, tokens = await prompt_of(service, chat_from_messages(body))
        return json_response({"input_tokens": len(tokens)})

    return [
        Route("/v1/messages", message, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
    ]
