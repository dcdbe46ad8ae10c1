"""GET /metrics, when switched on."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api.errors import NOT_SUPPORTED, ApiError
from app.api.rate_window import RateWindow
from app.api.service import Service


def routes(service: Service) -> list[Route]:
    """Return the routes of this file."""
    return [Route("/metrics", _Scrape(service).get)]


class _Scrape:
    """Answers scrapes; keeps what the rates since the last one need."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._window = RateWindow()

    async def get(self, request: Request) -> Response:
        if not self._service.settings.endpoint_metrics:
            raise ApiError(
                NOT_SUPPORTED,
                "This server does not support metrics endpoint. Start it with `--metrics`",
            )
        # The library takes a tenth of a second to import, which start-up has no time for.
        from app.api.metrics import CONTENT_TYPE, render_metrics

        text = render_metrics(self._service.engine.stats(), self._window)
        started = str(int(self._service.started_at))
        return Response(
            text,
            headers={"Content-Type": CONTENT_TYPE, "Process-Start-Time-Unix": started},
        )
