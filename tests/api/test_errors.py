"""The table from exceptions to answers."""

import logging

import pytest

from app.api.errors import to_api_error
from app.engine.errors import ContextFullError, EngineUnavailableError
from app.errors import (
    ContextExceededError,
    DeviceLostError,
    LlamaServeError,
    OutOfMemoryError,
    RequestError,
    UnsupportedError,
)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError("x", "top_k"), 400, "invalid_request_error"),
        (ContextExceededError("x", 2, 1), 400, "exceed_context_size_error"),
        (UnsupportedError("x"), 501, "not_supported_error"),
        (DeviceLostError("x"), 503, "unavailable_error"),
        (EngineUnavailableError("x"), 503, "unavailable_error"),
        (ContextFullError("x"), 500, "server_error"),
        (OutOfMemoryError("x"), 500, "server_error"),
        (LlamaServeError("x"), 500, "server_error"),
    ],
)
def test_each_error_has_a_status_and_a_type(error: Exception, status: int, kind: str) -> None:
    body = to_api_error(error).body()
    assert (body["code"], body["type"], body["message"]) == (status, kind, "x")


def test_the_field_to_blame_is_named() -> None:
    assert to_api_error(RequestError("x", "top_k")).body()["param"] == "top_k"


def test_what_nobody_expected_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        body = to_api_error(KeyError("slot")).body()
    assert (body["code"], body["type"]) == (500, "server_error")
    assert caplog.records[0].exc_info is not None
