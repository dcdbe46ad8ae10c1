"""The layers around the routes, outermost first: server name, CORS, prefix, loading, key, errors.

All are plain ASGI, so that streams and the client's departure pass through untouched.
"""

import hmac
import logging
from collections.abc import Callable, Sequence
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import AUTHENTICATION, ApiError, to_api_error
from app.api.responses import error_response

_log = logging.getLogger(__name__)

PUBLIC_PATHS: Final = frozenset({"/health", "/v1/health"})
PAGE_PATHS: Final = frozenset(
    {"/", "/index.html", "/sw.js", "/manifest.webmanifest", "/_app/version.json"}
)
_BEARER: Final = "Bearer "
_FRAMING: Final = (b"content-length", b"transfer-encoding", b"connection")


class _Spelled(bytes):
    """A header's name that keeps its capitals when uvicorn lowers them."""

    def lower(self) -> bytes:
        return self


class ServerName:
    """Puts `Server: llama.cpp` on every answer, and names of headers as llama-server writes them.

    Clients tell llama-server by the one; scripts that compare the other letter by letter exist.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["server"] = "llama.cpp"
                message["headers"] = [(_spelled(k), v) for k, v in message["headers"]]
            await send(message)

        await self._app(scope, receive, send_named)


def _spelled(name: bytes) -> bytes:
    """The name with capitals, except where the server must know it by its small letters."""
    return name if name in _FRAMING else _Spelled(name.title())


class Prefix:
    """Serves every path under a prefix as well."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if self._prefix and path.startswith((self._prefix + "/", self._prefix)):
            rest = path.removeprefix(self._prefix)
            if not rest or rest.startswith("/"):
                scope = dict(scope) | {"path": rest or "/"}
        await self._app(scope, receive, send)


class Unavailable:
    """Answers 503 with the reason while there is one, everywhere but on the page."""

    def __init__(self, app: ASGIApp, reason: Callable[[], ApiError | None]) -> None:
        self._app = app
        self._reason = reason

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = None if scope["path"] in PAGE_PATHS else self._reason()
        if reason is None:
            await self._app(scope, receive, send)
        else:
            await error_response(reason)(scope, receive, send)


class ApiKey:
    """Lets in whoever has one of the keys; everybody to the public paths, or if there are none.

    Keys are compared in constant time, all of them, so that timing tells nothing.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], public: frozenset[str]) -> None:
        self._app = app
        self._keys = tuple(key.encode() for key in keys)
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._keys or scope["path"] in self._public or self._is_known(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        _log.warning("unauthorized: Invalid API Key")
        error = ApiError(AUTHENTICATION, "Invalid API Key")
        await error_response(error)(scope, receive, send)

    def _is_known(self, headers: Headers) -> bool:
        given = headers.get("authorization") or headers.get("x-api-key") or ""
        candidate = given.removeprefix(_BEARER).encode("latin-1")  # the bytes as they came
        matches = [hmac.compare_digest(candidate, key) for key in self._keys]
        return any(matches)


class Errors:
    """Turns whatever a handler raises into an answer, unless one has begun already."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def send_watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_watched)
        except ClientDisconnect:
            _log.debug("client gone before its request was read")
        except Exception as error:
            api_error = to_api_error(error)
            if begun:
                _log.error("answer to %s broken off: %s", scope["path"], api_error)
                raise
            _log.info("%s %s: %s", scope["method"], scope["path"], api_error)
            await error_response(api_error)(scope, receive, send)
