"""A server that was started without a model."""

from collections.abc import Iterator

import pytest

from app.api.service import Service
from tests.helpers.live_server import SETTINGS, LiveServer, serving


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving(Service(SETTINGS, without_model=True)) as live:
        yield live


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/", "/props"])
def test_it_is_there(server: LiveServer, path: str) -> None:
    assert server.client.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
def test_it_has_no_models(server: LiveServer, path: str) -> None:
    assert server.client.get(path).json() == {"object": "list", "data": []}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/completion"),
        ("POST", "/v1/embeddings"),
        ("POST", "/tokenize"),
        ("POST", "/slots/0"),
        ("GET", "/slots"),
        ("GET", "/metrics"),
        ("POST", "/props"),
    ],
)
def test_what_needs_a_model_says_what_is_missing(
    server: LiveServer, method: str, path: str
) -> None:
    answer = server.client.request(method, path, json={})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("this server has no model")


def test_what_is_unknown_stays_unknown(server: LiveServer) -> None:
    assert server.client.get("/unknown").status_code == 404
