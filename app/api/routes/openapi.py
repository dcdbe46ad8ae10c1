"""GET /openapi.json: the document of all routes. llama-server has none; the path is ours."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api.responses import json_response
from app.api.service import Service


def routes(service: Service) -> list[Route]:
    """Return the routes of this file."""

    async def document(request: Request) -> Response:
        # Hundreds of small objects that few starts ever need.
        from app.api.openapi.document import openapi_document

        app = request.app
        assert isinstance(app, FastAPI)
        return json_response(openapi_document(app.routes, service.settings))

    return [Route("/openapi.json", document)]
