"""Items of a Responses request become chat messages that a template can take."""

import pytest

from app.api.dialects.responses_input import read_input
from app.api.dialects.responses_request import chat_from_responses
from app.api.json_value import Json, JsonObject
from app.api.messages import read_messages


def messages(*items: Json) -> list[JsonObject]:
    """The messages of items, which must be what chat accepts."""
    made = read_input({"input": [*items]})
    read_messages({"messages": [*made]})
    return made


def text(value: str) -> JsonObject:
    return {"type": "text", "text": value}


def test_text_is_a_question_of_the_user() -> None:
    assert read_input({"input": "hi"}) == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
def test_messages_keep_their_role(role: str) -> None:
    parts: list[Json] = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    wanted = [{"role": role, "content": [text("a"), text("b")]}]
    assert messages({"role": role, "content": parts}) == wanted
    assert messages({"type": "message", "role": role, "content": "a"}) == [
        {"role": role, "content": [text("a")]}
    ]


def test_what_one_answer_consisted_of_is_one_message() -> None:
    made = messages(
        {"role": "user", "content": "q"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "mine", "name": "g", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "1"},
        {
            "type": "function_call_output",
            "call_id": "mine",
            "output": [{"type": "input_text", "text": "2"}],
        },
        {"role": "user", "content": "next"},
    )
    assert [message["role"] for message in made] == ["user", "assistant", "tool", "tool", "user"]
    assert made[1] == {
        "role": "assistant",
        "content": [text("a")],
        "reasoning_content": "t",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "mine", "type": "function", "function": {"name": "g", "arguments": '{"a": 1}'}},
        ],
    }
    assert made[2] == {"role": "tool", "tool_call_id": "1", "content": "1"}
    assert made[3] == {"role": "tool", "tool_call_id": "mine", "content": [text("2")]}


def test_reasoning_without_text_says_nothing() -> None:
    empty: JsonObject = {"type": "reasoning", "summary": [], "content": None}
    assert messages({"role": "user", "content": "q"}, empty)[1:] == []
    told = messages(empty | {"summary": [{"type": "summary_text", "text": "s"}]})
    assert told[0]["reasoning_content"] == "s"


def test_a_refusal_is_what_the_assistant_said() -> None:
    made = messages({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]})
    assert made == [{"role": "assistant", "content": [text("no")]}]


def test_instructions_come_first_and_other_options_pass_through() -> None:
    chat = chat_from_responses(
        {
            "input": "hi",
            "instructions": "be brief",
            "max_output_tokens": 7,
            "reasoning": {"effort": "low"},
            "top_k": 3,
            "stream": True,
        }
    )
    assert chat["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]
    assert (chat["max_tokens"], chat["reasoning_effort"]) == (7, "low")
    assert (chat["top_k"], chat["stream"]) == (3, True)
    assert not {"input", "instructions", "reasoning", "text"} & chat.keys()


def test_only_allowed_tools_are_offered() -> None:
    tools: list[Json] = [{"type": "function", "name": name} for name in "abc"]
    allowed: JsonObject = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "b"}],
    }
    chat = chat_from_responses({"input": "hi", "tools": tools, "tool_choice": allowed})
    assert chat["tool_choice"] == "required"
    assert [tool["function"] for tool in chat["tools"]] == [  # type: ignore[union-attr, call-overload, index]
        {"name": "b", "description": None, "parameters": None}
    ]
