"""The official Anthropic client reads /v1/messages."""

from collections.abc import Iterator

import pytest

from tests.clients.programs import chat_server, run_script
from tests.helpers.server_process import Server

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with chat_server() as running:
        yield running


@pytest.fixture(scope="module")
def seen(server: Server) -> dict[str, object]:
    return run_script("anthropic_client.py", server.url)


def test_a_message(seen: dict[str, object]) -> None:
    assert seen["text"]
    assert seen["stop_reason"] in ("end_turn", "max_tokens")
    assert isinstance(seen["output_tokens"], int) and 0 < seen["output_tokens"] <= 16


def test_a_stream_tells_the_same(seen: dict[str, object]) -> None:
    assert seen["streamed"] == seen["text"]
    assert seen["streamed_output_tokens"] == seen["output_tokens"]


def test_tokens_are_counted(seen: dict[str, object]) -> None:
    assert isinstance(seen["counted"], int) and seen["counted"] > 8


def test_a_demanded_tool_is_called(seen: dict[str, object]) -> None:
    call = seen["call"]
    assert isinstance(call, list)
    assert call[:2] == ["tool_use", "get_weather"]
    assert call[2] in ({"city": "Paris"}, {"city": "Rome"})
    assert seen["call_stop_reason"] == "tool_use"


def test_a_call_is_streamed(seen: dict[str, object]) -> None:
    call, kinds = seen["call"], seen["kinds"]
    assert isinstance(call, list) and isinstance(kinds, list)
    assert seen["streamed_call"] == call[2]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert "input_json" in kinds


def test_a_refusal_has_its_type(seen: dict[str, object]) -> None:
    assert seen["refusal"] == "invalid_request_error"
