"""What goes wrong, in llama-server's words: one table from exceptions to status and error body.

Every handler raises; only `middleware.Errors` and the streams of `generation` turn what was raised
into an answer. Bodies have llama-server's form, {"error": {code, message, type}}; nothing leaves in
any other form. See format_error_response in llama.cpp's tools/server/server-common.cpp.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.api.json_value import Json, JsonObject
from app.engine.errors import EngineUnavailableError
from app.errors import (
    ContextExceededError,
    DeviceLostError,
    LlamaServeError,
    RequestError,
    UnsupportedError,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """The `type` of an error body and its HTTP status."""

    type: str
    status: int


INVALID_REQUEST: Final = ErrorKind("invalid_request_error", 400)
AUTHENTICATION: Final = ErrorKind("authentication_error", 401)
NOT_FOUND: Final = ErrorKind("not_found_error", 404)
TOO_LARGE: Final = ErrorKind("invalid_request_error", 413)
EXCEED_CONTEXT_SIZE: Final = ErrorKind("exceed_context_size_error", 400)
SERVER: Final = ErrorKind("server_error", 500)
NOT_SUPPORTED: Final = ErrorKind("not_supported_error", 501)
UNAVAILABLE: Final = ErrorKind("unavailable_error", 503)


class ApiError(LlamaServeError):
    """An error whose status and type are known; `details` are further fields of the body."""

    def __init__(
        self, kind: ErrorKind, message: str, details: Mapping[str, Json] | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.details: Mapping[str, Json] = details or {}

    def body(self) -> JsonObject:
        """Return the value of the answer's `error` field."""
        known: JsonObject = {
            "code": self.kind.status,
            "message": str(self),
            "type": self.kind.type,
        }
        return known | dict(self.details)


_KINDS: Final[tuple[tuple[type[Exception], ErrorKind], ...]] = (
    (RequestError, INVALID_REQUEST),
    (UnsupportedError, NOT_SUPPORTED),
    (DeviceLostError, UNAVAILABLE),
    (EngineUnavailableError, UNAVAILABLE),
    (LlamaServeError, SERVER),
)


def to_api_error(error: Exception) -> ApiError:
    """Return the error as an answer; what nobody expected is logged with its traceback."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextExceededError):
        details: JsonObject = {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
        return ApiError(EXCEED_CONTEXT_SIZE, str(error), details)
    for known, kind in _KINDS:
        if isinstance(error, known):
            details = {}
            if isinstance(error, RequestError) and error.param is not None:
                details["param"] = error.param
            return ApiError(kind, str(error), details)
    _log.error("unexpected %s", type(error).__name__, exc_info=error)
    return ApiError(SERVER, f"internal error: {type(error).__name__}: {error}")
