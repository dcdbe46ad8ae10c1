"""/predict: several requests in one, for Vertex AI."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from app.api.routes.predict import format_of
from app.api.settings import PredictSettings
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.live_server import SETTINGS, LiveServer, live_server

CHAT = {"messages": [{"role": "user", "content": "a"}]}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    predict = PredictSettings(path="/vertex", health="/alive")
    with live_server(FakeEngine(), replace(SETTINGS, predict=predict)) as live:
        yield live


def predictions(server: LiveServer, *instances: object) -> list[dict[str, object]]:
    answer = server.client.post("/vertex", json={"instances": instances})
    assert answer.status_code == 200
    found: list[dict[str, object]] = answer.json()["predictions"]
    return found


def test_each_instance_is_answered_in_its_place(server: LiveServer) -> None:
    chat, native, tokens = predictions(
        server,
        {"@requestFormat": "chatCompletions", "stream": True, **CHAT},
        {"@requestFormat": "/completion", "prompt": "a"},
        {"@requestFormat": "tokenize", "content": "ab"},
    )
    assert chat["object"] == "chat.completion"
    assert native["content"] == "Hello there!"
    assert tokens == {"tokens": [97, 98]}


@pytest.mark.parametrize(
    "instance",
    [
        1,
        {},
        {"@requestFormat": 1},
        {"@requestFormat": "nothing"},
        {"@requestFormat": "slots"},
        {"@requestFormat": "/vertex"},
        {"@requestFormat": "chatCompletions", "messages": 1},
    ],
)
def test_a_wrong_instance_is_refused_alone(server: LiveServer, instance: object) -> None:
    refused, fine = predictions(server, instance, {"@requestFormat": "tokenize", "content": "a"})
    assert isinstance(refused["error"], dict)
    assert refused["error"]["code"] == 400
    assert fine == {"tokens": [97]}


@pytest.mark.parametrize("body", [[], {}, {"instances": 1}, {"instances": [{}] * 129}])
def test_a_wrong_body_is_refused(server: LiveServer, body: object) -> None:
    answer = server.client.post("/vertex", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_the_platforms_health_path_is_served(server: LiveServer) -> None:
    assert server.client.get("/alive").json() == {"status": "ok"}


def test_nobody_else_has_it() -> None:
    with live_server(FakeEngine()) as plain:
        assert plain.client.post("/predict", json={"instances": []}).status_code == 404


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chatCompletions"),
        ("/apply-template", "applyTemplate"),
        ("/v1/messages/count_tokens", "messagesCountTokens"),
        ("/slots/{id_slot}", "slots"),
        ("/", ""),
    ],
)
def test_names_of_paths(path: str, name: str) -> None:
    assert format_of(path) == name
