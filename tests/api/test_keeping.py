"""Slots, sleep, adapters: what the HTTP room adds to the engine's part."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from app.api.file_name import is_file_name
from app.engine.errors import SlotFileError
from app.engine.facade import EngineState
from app.engine.request import SlotAction, SlotDeed
from app.errors import RequestError
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.live_server import SETTINGS, LiveServer, live_server

FOLDER = Path("/slots")


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[LiveServer]:
    with live_server(engine, replace(SETTINGS, slot_save_path=FOLDER)) as live:
        yield live


def is_error(answer: httpx.Response, status: int, message: str) -> bool:
    body = answer.json()["error"]
    return answer.status_code == status and body["code"] == status and message in body["message"]


def test_saving_tells_tokens_bytes_and_time(server: LiveServer, engine: FakeEngine) -> None:
    answer = server.client.post("/slots/1?action=save", json={"filename": "a.bin"})
    assert answer.json() == {
        "id_slot": 1,
        "filename": "a.bin",
        "n_saved": 84,
        "n_written": 4096,
        "timings": {"save_ms": 1.5},
    }
    assert engine.slot_actions == [SlotAction(SlotDeed.SAVE, 1, FOLDER / "a.bin")]


def test_restoring_and_erasing_tell_theirs(server: LiveServer) -> None:
    restored = server.client.post("/slots/0?action=restore", json={"filename": "a.bin"}).json()
    assert (restored["n_restored"], restored["n_read"]) == (84, 4096)
    assert restored["timings"] == {"restore_ms": 1.5}
    erased = server.client.post("/slots/0?action=erase")
    assert erased.json() == {"id_slot": 0, "n_erased": 84}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/slots/x?action=erase", {}, "Invalid slot ID"),
        ("/slots/-1?action=erase", {}, "Invalid slot ID"),
        ("/slots/99999999999999999999?action=erase", {}, "Invalid slot ID"),
        ("/slots/0?action=burn", {}, "Invalid action"),
        ("/slots/0", {}, "Invalid action"),
        ("/slots/0?action=save", {}, "Invalid filename"),
        ("/slots/0?action=save", {"filename": "../a"}, "Invalid filename"),
        ("/slots/0?action=save", {"filename": 1}, "filename"),
        ("/slots/0?action=restore", [], "object"),
    ],
)
def test_what_is_wrong_never_reaches_the_engine(
    server: LiveServer, engine: FakeEngine, path: str, body: object, message: str
) -> None:
    assert is_error(server.client.post(path, json=body), 400, message)
    assert engine.slot_actions == []


@pytest.mark.parametrize(
    ("error", "status"), [(RequestError("no such slot"), 400), (SlotFileError("disk full"), 500)]
)
def test_what_the_engine_refuses_is_told(
    server: LiveServer, engine: FakeEngine, error: Exception, status: int
) -> None:
    engine.refuses = error
    assert is_error(server.client.post("/slots/0?action=erase"), status, str(error))


def test_without_a_folder_slots_have_no_actions(engine: FakeEngine) -> None:
    with live_server(engine) as closed:
        answer = closed.client.post("/slots/0?action=erase")
    assert is_error(answer, 501, "--slot-save-path")


@pytest.mark.parametrize(
    "name", ["a", "slot 1.bin", ".hidden", "ü.bin", "x" * 255, "a.b.c", "a\u00a0b"]
)
def test_plain_names_are_names(name: str) -> None:
    assert is_file_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "a..b",
        "a.",
        " a",
        "a ",
        "a\n",
        "a\0",
        "\x85",
        "a:b",
        "a*",
        "\uff0e\uff0e",
        "a\u2215b",
        "\ufeffa",
        "x" * 256,
        "ü" * 128,
        "\ud800",
    ],
)
def test_names_that_hide_something_are_none(name: str) -> None:
    assert not is_file_name(name)


@pytest.mark.parametrize("path", ["/health", "/props", "/slots", "/models", "/v1/models", "/"])
def test_what_only_tells_lets_the_engine_sleep(
    server: LiveServer, engine: FakeEngine, path: str
) -> None:
    engine.state = EngineState.SLEEPING
    assert server.client.get(path).status_code == 200
    assert server.client.get("/props").json()["is_sleeping"] is True


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "a"}),
        ("/completion", {"prompt": "a"}),
        ("/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": "a"}]}),
        ("/slots/0?action=erase", {}),
    ],
)
def test_what_needs_the_model_wakes_it(
    server: LiveServer, engine: FakeEngine, path: str, body: object
) -> None:
    engine.state = EngineState.SLEEPING
    assert server.client.post(path, json=body).status_code == 200
    assert server.client.get("/props").json()["is_sleeping"] is False


def test_neither_a_wrong_key_nor_an_unknown_path_wakes(engine: FakeEngine) -> None:
    engine.state = EngineState.SLEEPING
    with live_server(engine, replace(SETTINGS, api_keys=("secret",))) as guarded:
        assert guarded.client.post("/completion", json={"prompt": "a"}).status_code == 401
        known = {"Authorization": "Bearer secret"}
        assert guarded.client.post("/unknown", headers=known).status_code == 404
    assert engine.state is EngineState.SLEEPING


def test_there_are_no_adapters(server: LiveServer) -> None:
    assert server.client.get("/lora-adapters").json() == []
    assert server.client.post("/lora-adapters", json=[]).json() == {"success": True}


@pytest.mark.parametrize("body", [{}, None, 1, [1], [{"id": 0, "scale": 1.0}], [{"id": "a"}]])
def test_adapters_that_are_not_there_cannot_be_set(server: LiveServer, body: object) -> None:
    assert is_error(server.client.post("/lora-adapters", json=body), 400, "")
