"""Tools and reasoning in /v1/chat/completions: what is told, whole and streamed, and refused."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.api.settings import ChatSettings
from app.engine.request import GenerationRequest, GrammarKind, Trigger
from app.tokenizer.builtin_templates import CHATML
from tests.helpers.fake_engine import FakeEngine, says
from tests.helpers.live_server import SETTINGS, LiveServer, live_server
from tests.helpers.sse import read_events

CHAT = "/v1/chat/completions"
Message = dict[str, object]
HELLO: list[Message] = [{"role": "user", "content": "hi"}]
TOOL: Message = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
OTHER: Message = {"type": "function", "function": {"name": "stop"}}
CALL = [
    "Wait.\n<tool_",
    'call>{"name": "look',
    '_up", "arguments": {"wo',
    'rd": "é"}}</tool',
    "_call>",
]
HERMES = """{%- for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}
{%- for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}
{%- endif %}{% endfor %}{% if tools %}(tools){{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}[assistant]{% if thinking %}<think>
{% endif %}{% endif %}{# arguments </think> #}"""


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(says(*CALL))


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[LiveServer]:
    with live_server(engine, replace(SETTINGS, chat=ChatSettings(template=HERMES))) as live:
        yield live


def ask(server: LiveServer, **body: object) -> dict[str, Any]:
    answer = server.client.post(CHAT, json={"messages": HELLO, **body})
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def deltas(server: LiveServer, **body: object) -> list[dict[str, Any]]:
    *chunks, done = read_events(server, CHAT, {"messages": HELLO, "stream": True, **body})
    assert done == "[DONE]"
    found: list[dict[str, Any]] = [chunk for chunk in chunks if isinstance(chunk, dict)]
    choices = [chunk["choices"][0] for chunk in found]
    return [{**choice["delta"], "reason": choice["finish_reason"]} for choice in choices]


def last_request(engine: FakeEngine) -> GenerationRequest:
    return engine.submitted[-1]


def test_a_call_is_told_whole(server: LiveServer) -> None:
    choice = ask(server, tools=[TOOL])
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": "Wait.", "refusal": None}
    assert len(call.pop("id")) == 32
    assert call == {
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"word": "é"}'},
    }


def test_a_streamed_call_has_its_head_once_and_then_pieces(server: LiveServer) -> None:
    told = deltas(server, tools=[TOOL])
    calls = [delta["tool_calls"][0] for delta in told if "tool_calls" in delta]
    assert len(calls[0].pop("id")) == 32
    assert calls[0] == {
        "index": 0,
        "type": "function",
        "function": {"name": "look_up", "arguments": ""},
    }
    assert calls[1:] == [
        {"index": 0, "function": {"arguments": piece}} for piece in ('{"wo', 'rd": "é"}')
    ]
    assert [delta["content"] for delta in told if delta.get("content")] == ["Wait."]
    assert told[-1] == {"reason": "tool_calls"}
    assert {delta["reason"] for delta in told[:-1]} == {None}


def test_a_call_cut_by_the_limit_ends_for_that(server: LiveServer) -> None:
    assert ask(server, tools=[TOOL], max_tokens=len("".join(CALL[:3])))["finish_reason"] == "length"


@pytest.mark.parametrize("body", [{"tool_choice": "none"}, {"parse_tool_calls": False}])
def test_calls_are_text_where_none_are_wanted(server: LiveServer, body: dict[str, object]) -> None:
    choice = ask(server, tools=[TOOL], **body)
    assert choice["message"]["content"] == "".join(CALL)
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]


def test_answers_are_not_looked_into_when_parsing_is_off(engine: FakeEngine) -> None:
    chat = ChatSettings(template=HERMES, parses=False)
    with live_server(engine, replace(SETTINGS, chat=chat)) as server:
        assert ask(server, tools=[TOOL])["message"]["content"] == "".join(CALL)


def test_calls_are_constrained_as_the_choice_says(engine: FakeEngine, server: LiveServer) -> None:
    def grammar(**body: object) -> str:
        ask(server, tools=[TOOL, OTHER], **body)
        found = last_request(engine).grammar
        assert found is not None and found.kind is GrammarKind.LARK
        wanted = body.get("tool_choice", "auto") == "auto"
        assert found.trigger == (
            Trigger("<tool_call>", "<think>", "</think>", False) if wanted else None
        )
        return found.source

    assert "look_up" in grammar() and "stop" in grammar()
    assert "look_up" in grammar(tool_choice="required")
    named = {"type": "function", "function": {"name": "stop"}}
    assert "look_up" not in grammar(tool_choice=named) and "stop" in grammar(tool_choice=named)
    twice = grammar(tool_choice="required", parallel_tool_calls=True)
    assert twice != grammar(tool_choice="required", parallel_tool_calls=False)
    ask(server, tools=[TOOL], tool_choice="none")
    assert last_request(engine).grammar is None


@pytest.mark.parametrize(
    "body",
    [
        {"tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": "always"},
        {"tools": [TOOL], "tool_choice": {"type": "function"}},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nobody"}}},
        {"tools": [TOOL], "grammar": 'root ::= "a"'},
        {"tools": [TOOL], "parallel_tool_calls": "yes"},
        {"tools": [TOOL], "parse_tool_calls": 1},
        {"tools": [TOOL], "stream": True, "logprobs": True},
        {"reasoning_format": "poem"},
        {"reasoning_budget_tokens": -2},
    ],
)
def test_malformed_requests_are_refused(server: LiveServer, body: dict[str, object]) -> None:
    answer = server.client.post(CHAT, json={"messages": HELLO, **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def prompt_of(server: LiveServer, messages: list[Message], **body: object) -> str:
    answer = server.client.post("/apply-template", json={"messages": messages, **body})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["prompt"])


def test_calls_and_results_reach_the_template(server: LiveServer) -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"word": "é"}'},
    }
    messages: list[Message] = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a letter"}]},
    ]
    prompt = prompt_of(server, messages)
    written = prompt.partition("<tool_call>")[2].partition("</tool_call>")[0]
    assert json.loads(written)["name"] == "look_up"
    assert "é" in written
    assert prompt.endswith("[tool]a letter[assistant]")


def test_a_template_without_tools_has_them_in_the_system_message(engine: FakeEngine) -> None:
    chat = ChatSettings(template=CHATML)
    engine.script = says('{"name": "look_up", "arguments": {"word": "a"}}')
    with live_server(engine, replace(SETTINGS, chat=chat)) as server:
        assert "look_up" in prompt_of(server, HELLO, tools=[TOOL])
        system: Message = {"role": "system", "content": "Be brief."}
        assert "Be brief.\n\nYou can call" in prompt_of(server, [system, *HELLO], tools=[TOOL])
        assert "look_up" not in prompt_of(server, HELLO, tools=[TOOL], tool_choice="none")
        assert ask(server, tools=[TOOL])["finish_reason"] == "tool_calls"


THOUGHT = ["I ", "see</th", "ink>\n", "Hello"]


@pytest.fixture
def thinker(engine: FakeEngine) -> Iterator[LiveServer]:
    engine.script = says(*THOUGHT)
    chat = ChatSettings(template=HERMES, kwargs={"thinking": True})
    with live_server(engine, replace(SETTINGS, chat=chat)) as live:
        yield live


def test_reasoning_is_told_apart(thinker: LiveServer) -> None:
    message = ask(thinker)["message"]
    assert (message["content"], message["reasoning_content"]) == ("Hello", "I see")
    told = deltas(thinker)
    assert [d["reasoning_content"] for d in told if "reasoning_content" in d] == ["I", " see"]
    assert [d["content"] for d in told if d.get("content")] == ["Hello"]


def test_reasoning_stays_in_the_content_when_asked_to(thinker: LiveServer) -> None:
    message = ask(thinker, reasoning_format="none")["message"]
    assert message["content"] == "<think>\nI see</think>\nHello"
    assert "reasoning_content" not in message


def test_reasoning_that_the_template_opens_is_closed_when_it_is_off(thinker: LiveServer) -> None:
    assert prompt_of(thinker, HELLO).endswith("[assistant]<think>\n")
    for off in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        assert prompt_of(thinker, HELLO, **off).endswith("[assistant]<think>\n</think>")
        message = ask(thinker, **off)["message"]
        assert message["content"] == "".join(THOUGHT)


def test_a_schema_binds_what_follows_the_reasoning(engine: FakeEngine, thinker: LiveServer) -> None:
    ask(thinker, response_format={"type": "json_object"})
    grammar = last_request(engine).grammar
    assert grammar is not None and grammar.kind is GrammarKind.LARK
    assert "</think>" in grammar.source


def test_a_budget_goes_to_the_engine_with_what_ends_reasoning(
    engine: FakeEngine, thinker: LiveServer
) -> None:
    ask(thinker, reasoning_budget_tokens=3, reasoning_budget_message="Enough.")
    thinking = last_request(engine).thinking
    assert thinking is not None
    assert (thinking.limit, thinking.start, thinking.end) == (3, "<think>", "</think>")
    assert bytes(thinking.closing) == b"Enough.</think>"
    assert thinking.opened
    ask(thinker)
    assert last_request(engine).thinking is None


def test_what_the_assistant_thought_and_said_is_continued(thinker: LiveServer) -> None:
    said: Message = {"role": "assistant", "content": "Once", "reasoning_content": "Hm"}
    prompt = prompt_of(thinker, [*HELLO, said])
    assert prompt.endswith("[user]hi[assistant]<think>\nHm\n</think>\n\nOnce")
    thought: Message = {"role": "assistant", "content": "", "reasoning_content": "Hm"}
    assert prompt_of(thinker, [*HELLO, thought]).endswith("[assistant]<think>\nHm")
    message = ask(thinker, messages=[*HELLO, thought])["message"]
    assert (message["content"], message["reasoning_content"]) == ("Hello", "I see")
    message = ask(thinker, messages=[*HELLO, said])["message"]
    assert message["content"] == "".join(THOUGHT)
