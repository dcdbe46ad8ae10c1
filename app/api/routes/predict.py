"""POST /predict, for Google's Vertex AI: several requests to other endpoints in one.

Each instance names its endpoint in `@requestFormat`, by path or in camel case (`chatCompletions`),
and is otherwise that endpoint's body; they run side by side. The prediction of one that is refused
is its refusal. There are no streams. Follows register_gcp_compat of llama.cpp's server
(server-http.cpp, b11434).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Scope

from app.api.body import read_object
from app.api.feed import ClientGoneError, while_connected
from app.api.json_value import Json, JsonObject, dump_json, parse_json
from app.api.middleware import Errors
from app.api.responses import json_response
from app.api.settings import ServerSettings
from app.errors import RequestError

_FORMAT: Final = "@requestFormat"
_MAX_INSTANCES: Final = 128


def routes(settings: ServerSettings, others: Sequence[Route]) -> list[Route]:
    """Return the routes of this file, none unless asked for; they dispatch to `others`."""
    if settings.predict is None:
        return []
    posts = {r.path: r for r in reversed(others) if r.methods and "POST" in r.methods}
    by_format = {format_of(path): route for path, route in posts.items()} | posts

    async def predict(request: Request) -> Response:
        body = await read_object(request, settings)
        instances = body.get("instances")
        if not isinstance(instances, list):
            raise RequestError("request body must include an array field named instances")
        if len(instances) > _MAX_INSTANCES:
            raise RequestError(f"instances array exceeds maximum size of {_MAX_INSTANCES}")
        try:
            async with while_connected(request.receive):
                predictions = await asyncio.gather(
                    *(_predict(request.scope, by_format, instance) for instance in instances)
                )
        except ClientGoneError:
            return Response()
        return json_response({"predictions": [*predictions]})

    found = [Route(settings.predict.path, predict, methods=["POST"])]
    if settings.predict.health is not None:
        health = next(route for route in others if route.path == "/health")
        found.append(Route(settings.predict.health, health.endpoint))
    return found


def format_of(path: str) -> str:
    """Return the camel-case name of a path: /v1/chat/completions is chatCompletions."""
    words = path.removeprefix("/v1").partition("{")[0].replace("-", "/").replace("_", "/")
    first, *rest = [word for word in words.split("/") if word] or [""]
    return first + "".join(word[0].upper() + word[1:] for word in rest)


async def _predict(scope: Scope, by_format: Mapping[str, Route], instance: Json) -> Json:
    if not isinstance(instance, dict):
        return _refusal("each instance must be a JSON object")
    name = instance.get(_FORMAT)
    if not isinstance(name, str):
        return _refusal(f"each instance must include a string {_FORMAT}")
    route = by_format.get(name)
    if route is None or "{" in route.path:
        return _refusal(f"no handler registered for {_FORMAT}: {name}")
    payload = {key: value for key, value in instance.items() if key != _FORMAT}
    payload["stream"] = False
    return await _call(scope, route, dump_json(payload))


async def _call(scope: Scope, route: Route, data: bytes) -> Json:
    """Run a route on a body, as if a client had sent it; return what it answers."""
    body: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]
    answer = bytearray()

    async def receive() -> Message:
        if body:
            return body.pop()
        # Whoever waits for the client to go is told by being cancelled.
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        answer.extend(message.get("body", b""))

    inner = {key: value for key, value in scope.items() if key not in ("path_params", "endpoint")}
    inner |= {"path": route.path, "query_string": b"", "headers": []}
    await Errors(route.app)(inner, receive, send)
    try:
        return parse_json(bytes(answer)) if answer else None
    except RequestError:
        return answer.decode("utf-8", "replace")


def _refusal(message: str) -> JsonObject:
    return {"error": {"code": 400, "message": message, "type": "invalid_request_error"}}
