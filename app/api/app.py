"""The ASGI application: routes and the layers around them.

Routes read their bodies themselves (`app.api.fields`), because llama-server's rules about absent,
null and wrong fields are not those of a schema library, and nothing may ever answer in FastAPI's
own error form.
"""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from app.api.cors import Cors
from app.api.errors import INVALID_REQUEST, NOT_FOUND, ApiError
from app.api.middleware import (
    PAGE_PATHS,
    PUBLIC_PATHS,
    ApiKey,
    Errors,
    Prefix,
    ServerName,
    Unavailable,
)
from app.api.responses import error_response
from app.api.routes import (
    absent,
    embeddings,
    generate,
    infill,
    messages,
    metrics,
    page,
    rerank,
    responses,
    state,
    text,
)
from app.api.service import Service


def create_app(service: Service) -> FastAPI:
    """Return the application; it answers 503 until `service` has a model."""
    settings = service.settings
    app = FastAPI(
        openapi_url=None,
        routes=[
            *state.routes(service),
            *generate.routes(service),
            *responses.routes(service),
            *messages.routes(service),
            *infill.routes(service),
            *text.routes(service),
            *embeddings.routes(service),
            *rerank.routes(service),
            *metrics.routes(service),
            *page.routes(service),
            *absent.routes(),
        ],
        middleware=[
            Middleware(ServerName),
            Middleware(Cors, settings.cors),
            Middleware(Prefix, settings.api_prefix),
            Middleware(Unavailable, service.unavailable),
            Middleware(ApiKey, settings.api_keys, PUBLIC_PATHS | PAGE_PATHS),
            Middleware(Errors),
        ],
        exception_handlers={HTTPException: _http_error},
    )
    app.router.redirect_slashes = False
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer what Starlette itself refuses; a known path with another method is as unknown."""
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):
        return error_response(ApiError(NOT_FOUND, "File Not Found"))
    return error_response(ApiError(INVALID_REQUEST, error.detail))
