"""Puts the document together: the operations of the routes that a server has."""

import re
from collections.abc import Iterable
from typing import Final

from starlette.routing import BaseRoute, Route

from app.api.json_value import Json, JsonObject
from app.api.openapi.answers import ANSWERS, TEXT
from app.api.openapi.operations import JSON, OPERATIONS, Operation
from app.api.openapi.requests import REQUESTS
from app.api.settings import ServerSettings
from app.version import __version__

_EVENTS: Final = "text/event-stream"
_ERRORS: Final = {
    400: "The request is wrong",
    401: "The key is wrong or missing",
    403: "The feature is switched off",
    413: "The body is too large",
    500: "The model or this server cannot do it",
    501: "Not offered by this server as it was started",
    503: "The model is not ready",
}
_OF_ALL: Final = (503,)
_OF_BODIES: Final = (400, 413, 500)
_KEYS: Final[JsonObject] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}


def openapi_document(routes: Iterable[BaseRoute], settings: ServerSettings) -> JsonObject:
    """Return the document for these routes."""
    served = {
        (route.path, method.lower())
        for route in routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        for path in operation.paths:
            if (path, operation.method) in served:
                item = paths.setdefault(path, {})
                assert isinstance(item, dict)
                item[operation.method] = _operation(path, operation, settings)
    return {
        "openapi": "3.1.0",
        "info": {"title": "llama-serve", "version": __version__},
        "servers": [{"url": settings.api_prefix or "/"}],
        "paths": paths,
        "components": {"schemas": {**ANSWERS, **REQUESTS}, "securitySchemes": _KEYS},
    }


def _operation(path: str, row: Operation, settings: ServerSettings) -> JsonObject:
    needs_key = bool(settings.api_keys) and not row.is_public
    statuses = [*row.errors, *_OF_ALL, *(_OF_BODIES if row.body else ())]
    statuses += [401] if needs_key else []
    responses: JsonObject = {} if not row.answer else {"200": _success(row)}
    responses |= {str(status): _failure(status) for status in sorted(statuses)}
    described: JsonObject = {
        "operationId": re.sub(r"\W+", "_", f"{row.method}{path}").strip("_"),
        "summary": row.summary,
        "responses": responses,
        "security": [{name: []} for name in _KEYS] if needs_key else [],
    }
    if parameters := _parameters(path, row):
        described["parameters"] = parameters
    if row.body:
        content: JsonObject = {JSON: {"schema": _reference(row.body)}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _parameters(path: str, row: Operation) -> list[Json]:
    """The parts of a path that vary, and what may stand behind it."""
    listed: list[Json] = []
    for name in re.findall(r"{(\w+)}", path):
        listed.append({"name": name, "in": "path", "required": True, "schema": TEXT})
    for name, schema in row.query:
        listed.append({"name": name, "in": "query", "required": False, "schema": schema})
    return listed


def _success(row: Operation) -> JsonObject:
    content: JsonObject = {row.media_type: {"schema": _reference(row.answer)}}
    if row.streams:
        content[_EVENTS] = {"schema": _reference("Event")}
    return {"description": "The answer", "content": content}


def _failure(status: int) -> JsonObject:
    name = "Disabled" if status == 403 else "Error"
    content: JsonObject = {JSON: {"schema": _reference(name)}}
    return {"description": _ERRORS[status], "content": content}


def _reference(name: str) -> JsonObject:
    return {"$ref": f"#/components/schemas/{name}"}
