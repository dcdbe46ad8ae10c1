"""Reads event streams as strictly as the format allows."""

import json
from typing import Any

from tests.helpers.live_server import LiveServer

Event = dict[str, object] | str


def parse_stream(text: str) -> list[Event]:
    """Return the JSON value of every event, "[DONE]" for that; refuse anything else."""
    assert text.endswith("\n\n"), "a stream ends with a whole event"
    events: list[Event] = []
    for block in text[:-2].split("\n\n"):
        if block == ":":
            continue
        assert block.startswith("data: ") and "\n" not in block, block
        data = block.removeprefix("data: ")
        events.append(data if data == "[DONE]" else json.loads(data))
    return events


def parse_named_stream(text: str) -> list[dict[str, Any]]:
    """Return the JSON object of every event, each of which must be named after its type."""
    assert text.endswith("\n\n"), "a stream ends with a whole event"
    events: list[dict[str, Any]] = []
    for block in text[:-2].split("\n\n"):
        if block == ":":
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}", block
        events.append(event)
    return events


def read_named_events(
    server: LiveServer, path: str, body: dict[str, object]
) -> list[dict[str, Any]]:
    """Return all events of a stream with named events."""
    answer = server.client.post(path, json=body | {"stream": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream"
    return parse_named_stream(answer.text)


def read_events(server: LiveServer, path: str, body: dict[str, object]) -> list[Event]:
    """Return all events of a stream, whose headers are checked."""
    with server.client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["transfer-encoding"] == "chunked"
        return parse_stream(answer.read().decode())
