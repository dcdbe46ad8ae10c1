"""Which web pages may call the server: llama-server's rules, in plain ASGI.

`*` with credentials echoes whatever Origin asks; `localhost` echoes only origins on this machine;
anything else is a list of origins of which the asking one is echoed. A preflight is answered here,
before keys and model are looked at, as browsers send it without any. See server_http_context::init
in llama.cpp's tools/server/server-http.cpp; answers to requests with credentials must say that
these are allowed, which llama-server's say in preflights only.
"""

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.settings import CorsSettings

_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


def allowed_origin(cors: CorsSettings, origin: str) -> str | None:
    """Return the value of Access-Control-Allow-Origin, or None for no such header."""
    if cors.origins == "*":
        return (origin or None) if cors.credentials else "*"
    if cors.origins == "localhost":
        return origin if _is_local(origin) else None
    listed = [entry.strip() for entry in cors.origins.split(",")]
    if len(listed) == 1:
        return listed[0]
    return origin if origin in listed else None


def allowed_headers(cors: CorsSettings, asked: str) -> str:
    """Return the value of Access-Control-Allow-Headers.

    By the Fetch standard `*` covers neither Authorization nor requests with credentials, so a
    browser, which asks in lower case, gets back what it asks for.
    """
    return asked if cors.headers == "*" and asked and asked == asked.lower() else cors.headers


def _is_local(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and parts.hostname in _LOCAL_HOSTS
    except ValueError:
        return False


class Cors:
    """Adds the headers to every answer and answers every OPTIONS request."""

    def __init__(self, app: ASGIApp, cors: CorsSettings) -> None:
        self._app = app
        self._cors = cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Headers(scope=scope)
        origin = allowed_origin(self._cors, asked.get("origin", ""))

        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start" and origin is not None:
                headers = MutableHeaders(scope=message)
                headers["Access-Control-Allow-Origin"] = origin
                if self._cors.credentials:
                    headers["Access-Control-Allow-Credentials"] = "true"
                if origin != self._cors.origins:
                    headers.add_vary_header("Origin")
            await send(message)

        if scope["method"] == "OPTIONS":
            headers = asked.get("access-control-request-headers", "")
            await self._preflight(headers)(scope, receive, send_with_origin)
        else:
            await self._app(scope, receive, send_with_origin)

    def _preflight(self, asked_headers: str) -> Response:
        cors = self._cors
        return Response(
            headers={
                "Access-Control-Allow-Credentials": "true" if cors.credentials else "false",
                "Access-Control-Allow-Methods": cors.methods,
                "Access-Control-Allow-Headers": allowed_headers(cors, asked_headers),
            },
            media_type="text/html",
        )
