"""What a server answers that was started without a model.

llama-server lets clients name one of many models then; here there is none to name, so the list is
empty and whatever needs a model says what is missing. Scripts and pages that look for a server
before they look for models find one.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api.errors import INVALID_REQUEST, ApiError
from app.api.json_value import Json, JsonObject
from app.api.responses import json_response
from app.api.service import Service
from app.version import BUILD_INFO

_LISTS: Final = ("/models", "/v1/models")
_HEALTH: Final = ("/health", "/v1/health")


def routes(service: Service, others: list[Route]) -> list[Route]:
    """Return the routes of this file; those of `others` that it lacks are refused."""
    settings = service.settings

    async def health(request: Request) -> Response:
        return json_response({"status": "ok"})

    async def models(request: Request) -> Response:
        nothing: list[Json] = []
        return json_response({"object": "list", "data": nothing})

    async def props(request: Request) -> Response:
        unset: JsonObject = {"params": {}, "n_ctx": 0}
        return json_response(
            {
                "role": "router",
                "max_instances": 0,
                "models_autoload": False,
                "model_alias": "llama-serve",
                "model_path": "none",
                "default_generation_settings": unset,
                "ui_settings": {},
                "build_info": BUILD_INFO,
                "cors_proxy_enabled": settings.cors_proxy,
            }
        )

    own = [Route(path, health) for path in _HEALTH]
    own += [Route(path, models, methods=["GET"]) for path in _LISTS]
    own.append(Route("/props", props, methods=["GET"]))
    return [*own, *(Route(r.path, _refuse, methods=list(r.methods or ())) for r in others)]


async def _refuse(request: Request) -> Response:
    raise ApiError(INVALID_REQUEST, "this server has no model: it must be started with -m or -hf")
