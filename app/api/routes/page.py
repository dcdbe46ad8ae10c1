"""GET / and the files that llama-server's page consists of, unless --no-ui."""

from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from app.api.json_value import JsonObject
from app.api.responses import json_response
from app.api.service import Service
from app.version import BUILD_INFO

_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>llama-serve</title>
<style>body{font:16px/1.5 system-ui;margin:3rem auto;max-width:40rem;padding:0 1rem}</style>
<h1>llama-serve</h1>
<p id="state">Asking the server …</p>
<p>An OpenAI-compatible API is served at <code>/v1</code>; see <a href="props">/props</a>,
<a href="slots">/slots</a> and <a href="v1/models">/v1/models</a>.</p>
<script>
fetch("health").then(answer => answer.json()).then(body => {
  state.textContent = body.status === "ok" ? "The model is ready." : body.error.message;
}).catch(() => { state.textContent = "The server does not answer."; });
</script>
"""


def routes(service: Service) -> list[Route]:
    """Return the routes of this file; none when the page is switched off."""
    if not service.settings.ui:
        return []
    return [
        Route("/", _page),
        Route("/index.html", _page),
        Route("/sw.js", _service_worker),
        Route("/manifest.webmanifest", _manifest),
        Route("/_app/version.json", _version),
    ]


async def _page(request: Request) -> Response:
    return HTMLResponse(_PAGE)


async def _service_worker(request: Request) -> Response:
    return Response("", media_type="text/javascript")


async def _manifest(request: Request) -> Response:
    body: JsonObject = {"name": "llama-serve", "start_url": "./", "display": "standalone"}
    return json_response(body)


async def _version(request: Request) -> Response:
    return json_response({"version": BUILD_INFO})
