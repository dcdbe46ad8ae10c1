"""Wakes a sleeping engine before a route that needs the model.

Around single routes and not around the application, so that neither a wrong key nor an unknown path
has the model loaded.
"""

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.service import Service


def waking(service: Service, route: Route) -> Route:
    """Return the route, changed so that it is only entered with the engine awake."""
    route.app = _Waking(route.app, service)
    return route


class _Waking:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._service.engine.wake()
        await self._app(scope, receive, send)
