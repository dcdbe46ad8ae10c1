"""Endpoints of llama-server that this server does not offer, answered as llama-server answers when
they are switched off or the model cannot do them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api.errors import NOT_SUPPORTED, ApiError
from app.api.responses import json_response

_GET: Final = ("GET",)
_POST: Final = ("POST",)


@dataclass(frozen=True, slots=True)
class Absent:
    """Paths that are answered with 501 and this message."""

    paths: tuple[str, ...]
    message: str
    methods: tuple[str, ...] = _POST


ABSENT: Final = (
    Absent(
        ("/v1/chat/completions/control", "/v1/streams/lookup"),
        "Control of running streams is not supported by this server",
    ),
    Absent(
        ("/v1/stream",),
        "Resuming streams is not supported by this server",
        ("GET", "DELETE"),
    ),
    Absent(
        ("/models/load", "/models/unload"),
        "Loading and unloading models is not supported by this server",
    ),
    Absent(("/models/sse",), "Router mode is not supported by this server", _GET),
    Absent(("/models",), "Router mode is not supported by this server", ("POST", "DELETE")),
    Absent(
        ("/audio/transcriptions", "/v1/audio/transcriptions"),
        "Audio is not supported by this model",
    ),
    Absent(("/v1/systemone",), "Decision models are not supported by this server"),
)

DISABLED: Final = ("/tools",)
"""Helpers of llama-server's page: 403 in their own form."""


def routes() -> list[Route]:
    """Return the routes of this file."""
    listed = [
        Route(path, _refuses(row.message), methods=list(row.methods))
        for row in ABSENT
        for path in row.paths
    ]
    listed += [Route(path, disabled, methods=["GET", "POST"]) for path in DISABLED]
    return listed


def _refuses(message: str) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        raise ApiError(NOT_SUPPORTED, message)

    return refuse


async def disabled(request: Request) -> Response:
    """Answer for a helper of the page that is switched off."""
    body = {"message": "this feature is disabled", "type": "feature_disabled"}
    return json_response({"error": {**body}}, 403)
