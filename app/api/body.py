"""Reads the body of a request, no more than the limit and no longer than the time-out."""

import asyncio

from starlette.requests import Request

from app.api.errors import INVALID_REQUEST, TOO_LARGE, ApiError
from app.api.json_value import JsonObject, parse_object
from app.api.settings import ServerSettings


async def read_body(request: Request, settings: ServerSettings) -> bytes:
    """Return the bytes of the body. Raises: ApiError when it is too large or too slow."""
    limit = settings.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    received = bytearray()
    try:
        async with asyncio.timeout(settings.timeout_s if settings.timeout_s > 0 else None):
            async for part in request.stream():
                received += part
                if len(received) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        message = f"request body did not arrive within {settings.timeout_s} s"
        raise ApiError(INVALID_REQUEST, message) from None
    return bytes(received)


async def read_object(request: Request, settings: ServerSettings) -> JsonObject:
    """Return the JSON object in the body. Raises: ApiError, RequestError."""
    return parse_object(await read_body(request, settings))


def _too_large(limit: int) -> ApiError:
    return ApiError(TOO_LARGE, f"request body is larger than {limit} bytes")
