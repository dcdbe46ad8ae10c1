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
from starlette.routing import Route

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
    adapters,
    embeddings,
    generate,
    infill,
    messages,
    metrics,
    no_model,
    openapi,
    page,
    predict,
    proxy,
    rerank,
    responses,
    slots,
    state,
    text,
)
from app.api.service import Service
from app.api.waking import waking


def create_app(service: Service) -> FastAPI:
    """Return the application; it answers 503 until `service` has a model."""
    settings = service.settings
    routes = _routes(service)
    app = FastAPI(
        openapi_url=None,
        routes=[*routes, *predict.routes(settings, routes)],
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


def _routes(service: Service) -> list[Route]:
    """What needs the model wakes it; what only tells of the server leaves it asleep."""
    helpers = (
        *openapi.routes(service),
        *page.routes(service),
        *proxy.routes(service),
        *absent.routes(),
    )
    wakers = (
        *generate.routes(service),
        *responses.routes(service),
        *messages.routes(service),
        *infill.routes(service),
        *text.routes(service),
        *embeddings.routes(service),
        *rerank.routes(service),
        *slots.routes(service),
    )
    tellers = (*state.routes(service), *metrics.routes(service), *adapters.routes(service))
    if service.without_model:
        return [*helpers, *no_model.routes(service, [*tellers, *wakers])]
    return [*tellers, *(waking(service, route) for route in wakers), *helpers]


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer what Starlette itself refuses; a known path with another method is as unknown."""
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):
        return error_response(ApiError(NOT_FOUND, "File Not Found"))
    return error_response(ApiError(INVALID_REQUEST, error.detail))
