"""POST /v1/messages and its token count: whole, streamed, through Anthropic's client."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, MessageParam, RawMessageStreamEvent, ToolParam
from pydantic import TypeAdapter

from app.engine.request import Failed, GenerationRequest, GrammarKind, StopReason
from app.errors import DeviceLostError
from tests.helpers.fake_engine import FakeEngine, Step, finished, says
from tests.helpers.live_server import LiveServer, live_server
from tests.helpers.sse import read_named_events
from tests.helpers.thinking import CALL, TEXT, THINKS, THOUGHT

MESSAGES = "/v1/messages"
HELLO: list[MessageParam] = [{"role": "user", "content": "hi"}]
TOOL: ToolParam = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
EVERYTHING = says(*THOUGHT, *TEXT, *CALL, *CALL)
ALL_KINDS = ["thinking", "text", "tool_use", "tool_use"]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(says("Hello", " there", "!"))


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[LiveServer]:
    with live_server(engine, THINKS) as live:
        yield live


@pytest.fixture
def client(server: LiveServer) -> Iterator[anthropic.Anthropic]:
    base_url = f"http://127.0.0.1:{server.port}"
    with anthropic.Anthropic(api_key="none", base_url=base_url, max_retries=0) as made:
        yield made


def body_of(**fields: object) -> dict[str, object]:
    return {"messages": HELLO, "max_tokens": 400} | fields


def ask(server: LiveServer, **fields: object) -> dict[str, Any]:
    answer = server.client.post(MESSAGES, json=body_of(**fields))
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()
    return message


def stream(server: LiveServer, **fields: object) -> list[dict[str, Any]]:
    return read_named_events(server, MESSAGES, body_of(**fields))


def test_whole_answer(server: LiveServer) -> None:
    answer = ask(server)
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "Hello there!"}],
        "model": "fake",
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "cache_read_input_tokens": 0,
            "input_tokens": len("[user]hi[assistant]") + 1,
            "output_tokens": 12,
        },
    }


def test_thinking_text_and_calls_are_blocks(server: LiveServer, engine: FakeEngine) -> None:
    engine.script = EVERYTHING
    answer = ask(server, tools=[TOOL])
    thinking, text, first, second = answer["content"]
    assert thinking == {"type": "thinking", "thinking": "I should look.", "signature": ""}
    assert text == {"type": "text", "text": "Let me see."}
    assert first.pop("id") != second.pop("id")
    assert first == {"type": "tool_use", "name": "get_weather", "input": {"city": "Paris"}}
    assert first == second
    assert answer["stop_reason"] == "tool_use"


def test_stream_tells_the_events_of_each_block_in_order(
    server: LiveServer, engine: FakeEngine
) -> None:
    engine.script = says(*THOUGHT, *TEXT, *CALL)
    events = stream(server, tools=[TOOL])
    assert events[0]["type"] == "message_start"
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    order = [(e["index"], e["type"].removeprefix("content_block_")) for e in events[1:-2]]
    for index in range(3):
        told = [kind for at, kind in order if at == index]
        assert told == ["start", *["delta"] * (len(told) - 2), "stop"]
    assert order == sorted(order, key=lambda place: place[0]), "blocks follow one another"
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert {"type": "signature_delta", "signature": ""} in deltas
    assert "".join(d["thinking"] for d in deltas if "thinking" in d) == "I should look."
    assert "".join(d["text"] for d in deltas if "text" in d) == "Let me see."
    arguments = [d["partial_json"] for d in deltas if "partial_json" in d]
    assert json.loads("".join(arguments)) == {"city": "Paris"} and len(arguments) > 1
    starts = [e["content_block"] for e in events if e["type"] == "content_block_start"]
    assert [block["type"] for block in starts] == ALL_KINDS[:3]
    assert starts[2]["input"] == {}


def test_stream_tells_of_the_prompt_first_and_of_the_answer_last(server: LiveServer) -> None:
    events = stream(server)
    start, delta = events[0]["message"], events[-2]
    assert start["content"] == [] and start["stop_reason"] is None
    assert start["usage"]["input_tokens"] == len("[user]hi[assistant]") + 1
    assert start["usage"]["output_tokens"] == 0
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert delta["usage"] == {"output_tokens": 12}


@pytest.mark.parametrize("script", [EVERYTHING, says(*CALL), says()], ids=["all", "call", "none"])
def test_every_event_is_what_anthropic_declares(
    server: LiveServer, engine: FakeEngine, script: Any
) -> None:
    engine.script = script
    events: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
    for event in stream(server, tools=[TOOL]):
        events.validate_python(event)
    Message.model_validate(ask(server, tools=[TOOL]))


@pytest.mark.parametrize(
    ("reason", "word", "told"),
    [
        (StopReason.EOS, "", ("end_turn", None)),
        (StopReason.LIMIT, "", ("max_tokens", None)),
        (StopReason.WORD, "END", ("stop_sequence", "END")),
    ],
)
def test_why_an_answer_ended(
    server: LiveServer, engine: FakeEngine, reason: StopReason, word: str, told: tuple[str, str]
) -> None:
    def script(request: GenerationRequest) -> Iterator[Step]:
        assert request.stop == ("END",)
        *events, _ = says("a")(request)
        yield from events
        end = finished(request, 1, reason)
        yield type(end)(**{n: getattr(end, n) for n in end.__slots__} | {"stopping_word": word})

    engine.script = script
    answer = ask(server, stop_sequences=["END"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == told


def test_the_limit_is_obeyed_and_has_a_default(server: LiveServer, engine: FakeEngine) -> None:
    assert ask(server, max_tokens=5)["stop_reason"] == "max_tokens"
    ask(server, max_tokens=None)
    assert [request.n_predict for request in engine.submitted] == [5, 4096]


def test_arguments_that_broke_off_are_told_as_none(server: LiveServer, engine: FakeEngine) -> None:
    engine.script = says(*CALL[:3])
    (call,) = ask(server, tools=[TOOL])["content"]
    assert call["input"] == {}


def test_the_beginning_of_a_call_that_the_limit_cut_off_is_no_text(
    server: LiveServer, engine: FakeEngine
) -> None:
    engine.script = says(*TEXT, *CALL)
    limit = len("".join((*TEXT, CALL[0])))
    answer = ask(server, tools=[TOOL], max_tokens=limit)
    assert [block.get("text") for block in answer["content"]] == ["".join(TEXT)]
    deltas = [e["delta"] for e in stream(server, tools=[TOOL], max_tokens=limit) if "delta" in e]
    assert "".join(delta.get("text", "") for delta in deltas) == "".join(TEXT)


def test_a_tool_that_must_be_called_constrains_the_answer(
    server: LiveServer, engine: FakeEngine
) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        ask(server, tools=[TOOL], tool_choice=choice)
        grammar = engine.submitted[-1].grammar
        assert grammar is not None and grammar.kind is GrammarKind.LARK and grammar.trigger is None
    ask(server, tools=[TOOL], tool_choice={"type": "none"})
    assert engine.submitted[-1].grammar is None


def test_a_schema_constrains_the_answer(server: LiveServer, engine: FakeEngine) -> None:
    form = {"type": "json_schema", "schema": {"type": "object", "title": "mine"}}
    ask(server, output_config={"format": form}, thinking={"type": "disabled"})
    grammar = engine.submitted[-1].grammar
    assert grammar is not None and "mine" in grammar.source


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": None},
        {"messages": 5},
        {"messages": [5]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [1]}]}]},
        {"system": 5},
        {"system": [{"type": "image"}]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [{"description": "nameless"}]},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}},
        {"tools": [TOOL], "tool_choice": {"type": "perhaps"}},
        {"tool_choice": {"type": "any"}},
        {"mcp_servers": [{"url": "x"}]},
        {"container": "x"},
        {"stop_sequences": [1]},
        {"output_config": {"format": {"type": "poem"}}},
        {"n": 2},
    ],
    ids=str,
)
def test_what_is_wrong_or_cannot_be_honoured_is_refused(
    server: LiveServer, engine: FakeEngine, wrong: dict[str, object]
) -> None:
    answer = server.client.post(MESSAGES, json=body_of(**wrong))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not engine.submitted


def test_images_are_refused_as_llama_server_refuses_them(server: LiveServer) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    image = {"type": "image", "source": source}
    result = {"type": "tool_result", "tool_use_id": "x", "content": [image]}
    for block in (image, result):
        messages = [{"role": "user", "content": [block]}]
        answer = server.client.post(MESSAGES, json=body_of(messages=messages))
        assert answer.status_code == 500
        assert "image input is not supported" in answer.json()["error"]["message"]


def test_count_tokens_needs_no_limit(server: LiveServer, engine: FakeEngine) -> None:
    answer = server.client.post(f"{MESSAGES}/count_tokens", json={"messages": HELLO, "system": "s"})
    assert answer.json() == {"input_tokens": len("[system]s[user]hi[assistant]") + 1}
    assert not engine.submitted


def test_anthropic_client_reads_a_whole_answer(
    client: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = EVERYTHING
    message = client.messages.create(
        model="any",
        max_tokens=400,
        system=[{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        messages=HELLO,
        tools=[TOOL],
        metadata={"user_id": "me"},
    )
    assert [block.type for block in message.content] == ALL_KINDS
    assert message.stop_reason == "tool_use"
    assert client.messages.count_tokens(model="any", messages=HELLO).input_tokens == 20


def test_anthropic_client_folds_a_stream(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.script = EVERYTHING
    with client.messages.stream(
        model="any",
        max_tokens=400,
        messages=HELLO,
        tools=[TOOL],
        thinking={"type": "enabled", "budget_tokens": 1024},
    ) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert text == "Let me see."
    assert [block.type for block in final.content] == ALL_KINDS
    inputs = [block.input for block in final.content if block.type == "tool_use"]
    assert inputs == [{"city": "Paris"}] * 2
    assert final.stop_reason == "tool_use" and final.usage.output_tokens > 0


def test_a_conversation_with_tools_goes_on(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.script = EVERYTHING
    first = client.messages.create(model="any", max_tokens=400, messages=HELLO, tools=[TOOL])
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
        for block in first.content
        if block.type == "tool_use"
    ]
    blocks: list[Any] = [block.model_dump() for block in first.content]
    told: list[MessageParam] = [
        *HELLO,
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [*results, {"type": "text", "text": "and?"}]},
    ]
    client.messages.create(model="any", max_tokens=400, messages=told, tools=[TOOL])
    prompt = engine.tokenizer.decode(engine.submitted[-1].prompt, special=False)
    calls = "".join(
        f'<tool_call>{r["tool_use_id"]} get_weather {{"city": "Paris"}}</tool_call>'
        for r in results
    )
    answers = "".join(f"[tool{r['tool_use_id']}]sunny" for r in results)
    assert prompt.endswith(
        f"[assistant]<think>I should look.</think>Let me see.{calls}{answers}[user]and?[assistant]"
    )


def test_errors_have_their_type(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model="any", max_tokens=-5, messages=HELLO)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "invalid_request_error"


def test_an_error_in_a_stream_is_raised(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    def script(request: GenerationRequest) -> Iterator[Step]:
        events = says("a")(request)
        yield next(events)
        yield next(events)
        yield Failed(DeviceLostError("worker gone"))

    engine.script = script
    with pytest.raises(anthropic.APIStatusError, match="worker gone") as caught:
        list(client.messages.create(model="any", max_tokens=9, messages=HELLO, stream=True))
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["code"] == 503
