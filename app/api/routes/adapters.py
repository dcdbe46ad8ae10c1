"""GET and POST /lora-adapters: there are none, which can be asked and said again."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api import fields
from app.api.body import read_body
from app.api.json_value import parse_json
from app.api.responses import json_response
from app.api.service import Service
from app.errors import RequestError


def routes(service: Service) -> list[Route]:
    """Return the routes of this file."""

    async def listed(request: Request) -> Response:
        return json_response([])

    async def change(request: Request) -> Response:
        body = parse_json(await read_body(request, service.settings))
        if not isinstance(body, list):
            raise RequestError("Request body must be an array")
        for entry in body:
            if not isinstance(entry, dict):
                fields.wrong_type("entry", entry, "an object")
            number = fields.integer(entry, "id", -1)
            raise RequestError(f"there is no LoRA adapter with id {number}", "id")
        return json_response({"success": True})

    return [
        Route("/lora-adapters", listed, methods=["GET"]),
        Route("/lora-adapters", change, methods=["POST"]),
    ]
