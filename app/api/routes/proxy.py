"""GET and POST /cors-proxy?url=..., with --ui-mcp-proxy: how a page reaches servers that send no
CORS headers.

Whoever may call it reaches whatever this host reaches, so it is off by default. Only http and https
are spoken, and of the client's headers none goes on but those that are meant to: they begin with
`x-llama-server-proxy-header-`. Bodies go through as they are, answers in pieces. Follows
server-cors-proxy.h of llama.cpp's server (b11434).
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from app.api.body import read_body
from app.api.errors import SERVER, ApiError
from app.api.routes.absent import disabled
from app.api.service import Service
from app.errors import RequestError

_PREFIX: Final = "x-llama-server-proxy-header-"
_TIMEOUT_S: Final = 600.0
_CONNECT_TIMEOUT_S: Final = 30.0
_MAX_PORT: Final = 65535
_NOT_PASSED: Final = frozenset(
    {
        "connection",
        "content-length",
        "keep-alive",
        "proxy-authenticate",
        "server",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of an answer that are about one connection, or that would be taken for this server's."""


def routes(service: Service) -> list[Route]:
    """Return the routes of this file; a refusal when the proxy is switched off."""

    async def forward(request: Request) -> Response:
        body = await read_body(request, service.settings)
        url = request.query_params.get("url", "")
        return await _forward(request.method, url, proxied_headers(request.headers), body)

    endpoint = forward if service.settings.cors_proxy else disabled
    return [Route("/cors-proxy", endpoint, methods=["GET", "POST"])]


def proxied_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that are meant for the other server."""
    found = {k.lower(): v for k, v in headers.items() if k.lower().startswith(_PREFIX)}
    return {k.removeprefix(_PREFIX): v for k, v in found.items() if k != _PREFIX}


def passed_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of an answer that the client gets; those of CORS are this server's own."""
    return {
        name: value
        for name, value in headers.items()
        if name.lower() not in _NOT_PASSED and not name.lower().startswith("access-control-")
    }


async def _forward(method: str, url: str, headers: Mapping[str, str], body: bytes) -> Response:
    # The client library takes a tenth of a second to import, which start-up has no time for.
    import httpx

    try:
        target = httpx.URL(url)
        if target.scheme not in ("http", "https") or not target.host:
            raise RequestError(f"target {url!r}: expected an http or https URL with a host", "url")
        if target.port is not None and not 0 < target.port <= _MAX_PORT:
            raise RequestError(f"target {url!r}: there is no port {target.port}", "url")
        if target.userinfo:
            raise RequestError("authentication in the target URL is not supported", "url")
        request = httpx.Request(method, target, headers=headers, content=body or None)
    except (httpx.InvalidURL, UnicodeError, ValueError, TypeError) as error:
        raise RequestError(f"target {url!r}: {error}", "url") from error
    async with AsyncExitStack() as opened:
        timeout = httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        client = httpx.AsyncClient(timeout=timeout, trust_env=False)
        await opened.enter_async_context(client)
        try:
            answer = await client.send(request, stream=True, follow_redirects=True)
        except (httpx.HTTPError, httpx.InvalidURL, OverflowError, UnicodeError) as error:
            raise ApiError(SERVER, f"proxy error: {str(error) or type(error).__name__}") from error
        opened.push_async_callback(answer.aclose)
        rest = opened.pop_all()

    async def pieces() -> AsyncIterator[bytes]:
        async with rest:
            async for piece in answer.aiter_raw():
                yield piece

    if answer.status_code == 204:
        await rest.aclose()
        return Response(status_code=204, headers=passed_headers(answer.headers))
    return StreamingResponse(pieces(), answer.status_code, passed_headers(answer.headers))
