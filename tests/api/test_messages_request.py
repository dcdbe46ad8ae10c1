"""Anthropic's messages become chat messages that a template can take."""

from app.api.dialects.messages_request import chat_from_messages
from app.api.json_value import Json, JsonObject
from app.api.messages import read_messages, read_tools

HELLO: JsonObject = {"role": "user", "content": "hi"}


def converted(*messages: Json, **fields: Json) -> JsonObject:
    """The chat request, which must be what chat accepts."""
    chat = chat_from_messages({"messages": [*messages], **fields})
    read_messages(chat)
    read_tools(chat)
    return chat


def messages(*given: Json) -> Json:
    return converted(*given)["messages"]


def text(value: str) -> JsonObject:
    return {"type": "text", "text": value}


def result(call: str, content: Json) -> JsonObject:
    return {"type": "tool_result", "tool_use_id": call, "content": content}


def test_plain_messages_stay_as_they_are() -> None:
    told: list[Json] = [HELLO, {"role": "assistant", "content": "ho"}, HELLO]
    assert messages(*told) == told


def test_system_blocks_are_one_text() -> None:
    blocks: list[Json] = [text("a"), {**text("b"), "cache_control": {"type": "ephemeral"}}]
    for system in ("ab", blocks):
        chat = converted(HELLO, system=system)
        assert chat["messages"] == [{"role": "system", "content": "ab"}, HELLO]


def test_a_stamp_that_differs_each_time_spoils_no_prefix() -> None:
    head = "x-anthropic-billing-header: cc_version=2.1; cch={}; You are"
    stamped = [converted(HELLO, system=head.format(s)) for s in ("a5145", "b0000")]
    assert stamped[0] == stamped[1]
    assert converted(HELLO, system="cch=a5145;") != converted(HELLO, system="cch=b0000;")


def test_blocks_of_an_answer_are_one_message() -> None:
    blocks: list[Json] = [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "redacted_thinking", "data": "sealed"},
        text("I look."),
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"é": [1]}},
        {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
    ]
    assert messages(HELLO, {"role": "assistant", "content": blocks}) == [
        HELLO,
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": [text("I look.")],
            "tool_calls": [
                {
                    "id": "t1",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"é":[1]}'},
                },
                {"id": "t2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
    ]


def test_results_are_messages_of_their_own_in_their_place() -> None:
    blocks: list[Json] = [result("t1", "one"), result("t2", [text("t"), text("wo")]), text("so?")]
    assert messages({"role": "user", "content": blocks}) == [
        {"role": "tool", "tool_call_id": "t1", "content": "one"},
        {"role": "tool", "tool_call_id": "t2", "content": [text("t"), text("wo")]},
        {"role": "user", "content": [text("so?")]},
    ]
    first: list[Json] = [text("here:"), result("t1", None)]
    assert messages({"role": "user", "content": first}) == [
        {"role": "user", "content": [text("here:")]},
        {"role": "tool", "tool_call_id": "t1", "content": ""},
    ]


def test_a_message_without_blocks_is_empty() -> None:
    assert messages({"role": "user", "content": []}) == [{"role": "user", "content": ""}]


def test_tools_and_choice() -> None:
    schema: JsonObject = {"type": "object"}
    chat = converted(
        HELLO,
        tools=[{"name": "f", "description": "d", "input_schema": schema}],
        tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    )
    function: JsonObject = {"name": "f", "description": "d", "parameters": schema}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert chat["parallel_tool_calls"] is False


def test_thinking_and_effort() -> None:
    enabled = converted(HELLO, thinking={"type": "enabled", "budget_tokens": 50})
    assert enabled["thinking_budget_tokens"] == 50
    off = converted(HELLO, thinking={"type": "disabled"}, output_config={"effort": "low"})
    assert off["reasoning_effort"] == "none"
    assert converted(HELLO, output_config={"effort": "low"})["reasoning_effort"] == "low"


def test_other_options_pass_through() -> None:
    chat = converted(HELLO, top_k=3, seed=7, stream=True, stop_sequences=["x"], metadata={"a": "b"})
    assert (chat["top_k"], chat["seed"], chat["stream"]) == (3, 7, True)
    assert chat["stop"] == ["x"]
    assert "metadata" not in chat
