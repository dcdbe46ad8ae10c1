"""LangChain's OpenAI chat model: answers, streams, tools and schemas."""

import pytest

from tests.clients.programs import chat_server, run_script

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def seen() -> dict[str, object]:
    with chat_server() as server:
        return run_script("langchain_client.py", server.url)


def test_an_answer_and_the_same_streamed(seen: dict[str, object]) -> None:
    assert seen["text"]
    assert seen["streamed"] == seen["text"]
    assert isinstance(seen["usage"], int) and seen["usage"] > 0


def test_a_demanded_tool_is_called(seen: dict[str, object]) -> None:
    arguments = seen["arguments"]
    assert seen["call"] == "add"
    assert isinstance(arguments, dict)
    assert {name: type(value) for name, value in arguments.items()} == {"left": int, "right": int}


def test_the_same_call_is_streamed(seen: dict[str, object]) -> None:
    assert seen["streamed_call"] == seen["call"]
    assert seen["streamed_arguments"] == seen["arguments"]
    assert seen["invalid_calls"] == []


def test_a_result_is_taken_back(seen: dict[str, object]) -> None:
    assert seen["after"]


def test_an_answer_keeps_to_a_schema(seen: dict[str, object]) -> None:
    assert seen["structured"] in ({"city": "Paris"}, {"city": "Rome"})
