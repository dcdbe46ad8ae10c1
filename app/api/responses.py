"""The plain answers: a JSON body, or an error in llama-server's form."""

from starlette.responses import Response

from app.api.errors import ApiError
from app.api.json_value import Json, JsonObject, dump_json

_JSON = "application/json; charset=utf-8"


def json_response(body: Json, status: int = 200) -> Response:
    """Return an answer with a JSON body."""
    return Response(dump_json(body), status, media_type=_JSON)


def error_response(error: ApiError) -> Response:
    """Return an answer that tells about an error."""
    body: JsonObject = {"error": error.body()}
    return json_response(body, error.kind.status)


def client_gone() -> Response:
    """Return an answer for a client that has left and will not read it."""
    return Response(status_code=499)
