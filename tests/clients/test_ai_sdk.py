"""The Vercel AI SDK in Node, as ChatBox and many pages use it."""

from pathlib import Path

import pytest

from tests.clients.programs import chat_server, run_node_script

KEY = "sekrit"
PLACES = ({"city": "Paris"}, {"city": "Rome"})

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder: Path = tmp_path_factory.mktemp("node")
    with chat_server("--api-key", KEY) as server:
        return run_node_script("ai_sdk.mjs", folder, server.url, KEY)


def test_a_text(seen: dict[str, object]) -> None:
    assert seen["text"]
    assert seen["finishReason"] in ("stop", "length")
    assert isinstance(seen["outputTokens"], int) and 0 < seen["outputTokens"] <= 16


def test_a_stream_tells_the_same(seen: dict[str, object]) -> None:
    assert seen["streamed"] == seen["text"]
    assert isinstance(seen["nPieces"], int) and seen["nPieces"] > 1
    assert seen["streamedFinishReason"] == seen["finishReason"]
    assert seen["streamedOutputTokens"] == seen["outputTokens"]


def test_a_demanded_tool_is_called(seen: dict[str, object]) -> None:
    calls = seen["calls"]
    assert isinstance(calls, list) and len(calls) == 1
    assert calls[0]["toolName"] == "weather"
    assert calls[0]["input"] in PLACES
    assert seen["callFinishReason"] == "tool-calls"


def test_the_same_call_is_streamed(seen: dict[str, object]) -> None:
    assert seen["streamedCalls"] == seen["calls"]
    assert seen["errors"] == 0


def test_an_object_keeps_to_a_schema(seen: dict[str, object]) -> None:
    assert seen["object"] in PLACES


def test_a_refusal_is_told_in_its_words(seen: dict[str, object]) -> None:
    assert seen["refusal"] == "401 Invalid API Key"
