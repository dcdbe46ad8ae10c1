"""POST /v1/responses and its token count: whole, streamed, through OpenAI's client."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from app.engine.request import Failed, GenerationRequest, GrammarKind
from app.errors import DeviceLostError
from tests.helpers.fake_engine import FakeEngine, Script, Step, says
from tests.helpers.live_server import LiveServer, live_server
from tests.helpers.sse import read_named_events
from tests.helpers.thinking import CALL, PARAMETERS, TEXT, THINKS, THOUGHT

RESPONSES = "/v1/responses"
TOOL: dict[str, object] = {
    "type": "function",
    "name": "get_weather",
    "parameters": PARAMETERS,
    "strict": True,
}
EVERYTHING = says(*THOUGHT, *TEXT, *CALL, *CALL)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(says("Hello", " there", "!"))


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[LiveServer]:
    with live_server(engine, THINKS) as live:
        yield live


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    base_url = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(api_key="none", base_url=base_url, max_retries=0) as made:
        yield made


def ask(server: LiveServer, path: str = RESPONSES, **body: object) -> dict[str, Any]:
    answer = server.client.post(path, json={"input": "hi"} | body)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


def stream(server: LiveServer, **body: object) -> list[dict[str, Any]]:
    return read_named_events(server, RESPONSES, {"input": "hi"} | body)


def without_ids(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The output, but for ids, which differ from answer to answer."""
    ids = ("id", "call_id")
    return [{k: v for k, v in item.items() if k not in ids} for item in response["output"]]


def test_whole_answer(server: LiveServer) -> None:
    answer = ask(server, "/responses")
    assert answer["object"] == "response" and answer["status"] == "completed"
    assert answer["id"].startswith("resp_") and len(answer["id"]) == 5 + 32
    (item,) = answer["output"]
    assert item["id"].startswith("msg_")
    part = {"type": "output_text", "text": "Hello there!", "annotations": [], "logprobs": []}
    assert without_ids(answer) == [
        {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
    ]
    n_prompt = len("[user]hi[assistant]") + 1
    usage = answer["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (n_prompt, 12)
    assert usage["total_tokens"] == n_prompt + 12
    assert usage["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


def test_reasoning_text_and_calls_are_items(server: LiveServer, engine: FakeEngine) -> None:
    engine.script = EVERYTHING
    answer = ask(server, tools=[TOOL])
    kinds = [item["type"] for item in answer["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    reasoning, message, first, second = answer["output"]
    assert reasoning["id"].startswith("rs_") and reasoning["summary"] == []
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "I should look."}]
    assert message["content"][0]["text"] == "Let me see."
    assert first["name"] == "get_weather"
    assert first["arguments"] == '{"city": "Paris"}'
    assert first["id"].removeprefix("fc_") == first["call_id"].removeprefix("call_")
    assert first["id"] != second["id"]
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == len("I should look.")


def test_stream_tells_the_events_of_each_item_in_order(
    server: LiveServer, engine: FakeEngine
) -> None:
    engine.script = says(*THOUGHT, *TEXT, *CALL)
    events = stream(server, tools=[TOOL])
    names = [event["type"].removeprefix("response.") for event in events]
    assert names == [
        "created",
        "in_progress",
        "output_item.added",
        *["reasoning_text.delta"] * 2,
        "reasoning_text.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 2,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        *["function_call_arguments.delta"] * names.count("function_call_arguments.delta"),
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    arguments = [e["delta"] for e in events if e["type"].endswith("call_arguments.delta")]
    assert "".join(arguments) == '{"city": "Paris"}' and len(arguments) > 1
    for event in events:
        place = event.get("output_index")
        if place is not None:
            item = events[-1]["response"]["output"][place]
            assert event.get("item_id", item["id"]) == item["id"]
            assert event.get("item", item)["id"] == item["id"]


def test_stream_ends_with_the_whole_answer(server: LiveServer, engine: FakeEngine) -> None:
    engine.script = EVERYTHING
    whole = ask(server, tools=[TOOL])
    streamed = stream(server, tools=[TOOL])[-1]
    assert streamed["timings"]["predicted_n"] == whole["usage"]["output_tokens"]
    assert without_ids(streamed["response"]) == without_ids(whole)
    ids = {"id", "output", "created_at", "completed_at"}
    assert {k: v for k, v in streamed["response"].items() if k not in ids} == {
        k: v for k, v in whole.items() if k not in ids
    }


@pytest.mark.parametrize("script", [EVERYTHING, says(*CALL), says()], ids=["all", "call", "none"])
def test_every_event_is_what_openai_declares(
    server: LiveServer, engine: FakeEngine, script: Script
) -> None:
    engine.script = script
    events: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
    told = stream(server, tools=[TOOL], include=["reasoning.encrypted_content"])
    for event in told:
        events.validate_python(event)
    Response.model_validate(ask(server, tools=[TOOL]))


def test_the_limit_makes_an_answer_incomplete(server: LiveServer) -> None:
    for answer in (
        ask(server, max_output_tokens=5),
        stream(server, max_output_tokens=5)[-1]["response"],
    ):
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert answer["output"][0]["status"] == "incomplete"
        assert answer["output"][0]["content"][0]["text"] == "Hello"
        assert answer["max_output_tokens"] == 5


def test_the_beginning_of_a_call_that_the_limit_cut_off_is_no_text(
    server: LiveServer, engine: FakeEngine
) -> None:
    engine.script = says(*TEXT, *CALL)
    limit = len("".join((*TEXT, CALL[0])))
    told = stream(server, tools=[TOOL], max_output_tokens=limit)[-1]["response"]
    for answer in (ask(server, tools=[TOOL], max_output_tokens=limit), told):
        texts = [part["text"] for item in answer["output"] for part in item["content"]]
        assert texts == ["".join(TEXT)]


def test_an_answer_repeats_its_request(server: LiveServer) -> None:
    said: dict[str, Any] = {"instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5}
    answer = ask(server, tools=[TOOL], tool_choice="auto", unheard_of=1, **said)
    assert {name: answer[name] for name in said} == said
    assert answer["tools"] == [TOOL] and answer["tool_choice"] == "auto"
    assert answer["store"] is False and "unheard_of" not in answer


def test_progress_and_timings_are_told_when_asked_for(server: LiveServer) -> None:
    events = stream(server, return_progress=True, timings_per_token=True)
    told = [event for event in events if "prompt_progress" in event]
    assert [event["type"] for event in told] == ["response.in_progress"] * 2
    assert told[-1]["prompt_progress"]["processed"] == told[-1]["prompt_progress"]["total"]
    timed = [e for e in events if e["type"] == "response.output_text.delta" and "timings" in e]
    assert len(timed) == 3


def test_logprobs_are_told_with_the_text(server: LiveServer) -> None:
    wanted: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = ask(server, **wanted)["output"][0]["content"][0]["logprobs"]
    streamed = [e["logprobs"] for e in stream(server, **wanted) if "delta" in e]
    assert [entry["token"] for entry in whole] == list("Hello there!")
    assert len(whole[0]["top_logprobs"]) == 2
    assert [entry for told in streamed for entry in told] == whole


def test_a_schema_constrains_the_answer(server: LiveServer, engine: FakeEngine) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object", "title": "mine"}}
    ask(server, text={"format": form}, reasoning={"effort": "none"})
    grammar = engine.submitted[-1].grammar
    assert grammar is not None and "mine" in grammar.source
    ask(server, text={"format": {"type": "text"}})
    assert engine.submitted[-1].grammar is None


def test_a_tool_that_must_be_called_constrains_the_answer(
    server: LiveServer, engine: FakeEngine
) -> None:
    choice = {"type": "function", "name": "get_weather"}
    ask(server, tools=[TOOL], tool_choice=choice)
    grammar = engine.submitted[-1].grammar
    assert grammar is not None and grammar.kind is GrammarKind.LARK and grammar.trigger is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": None},
        {"input": 5},
        {"input": [7]},
        {"input": [{"role": "poet", "content": "x"}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
        {"input": [{"type": "function_call", "call_id": "1", "name": "f"}]},
        {"input": [{"type": "function_call_output", "output": "x"}]},
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"background": True},
        {"prompt": {"id": "p"}},
        {"n": 2},
        {"tools": [5]},
        {"tools": [TOOL], "tool_choice": {"type": "web_search"}},
        {"text": {"format": {"type": "poem"}}},
        {"max_output_tokens": "many"},
    ],
    ids=str,
)
def test_what_is_wrong_or_cannot_be_honoured_is_refused(
    server: LiveServer, engine: FakeEngine, wrong: dict[str, object]
) -> None:
    answer = server.client.post(RESPONSES, json={"input": "hi"} | wrong)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not engine.submitted


def test_fields_that_ask_for_nothing_are_no_reason_to_refuse(server: LiveServer) -> None:
    ask(server, previous_response_id=None, background=False, conversation=None, store=True, n=1)


def test_tools_that_openai_runs_are_left_out(server: LiveServer) -> None:
    prompt = {"input": "hi", "tools": [{"type": "web_search"}, TOOL]}
    alone = {"input": "hi", "tools": [TOOL]}
    counts = [
        server.client.post(f"{RESPONSES}/input_tokens", json=b).json() for b in (prompt, alone)
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("path", ["/responses/input_tokens", "/v1/responses/input_tokens"])
def test_input_tokens(server: LiveServer, path: str) -> None:
    answer = server.client.post(path, json={"input": "hi", "instructions": "be"}).json()
    n_tokens = len("[system]be[user]hi[assistant]") + 1
    assert answer == {"input_tokens": n_tokens, "object": "response.input_tokens"}


def test_openai_client_reads_a_whole_answer(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = EVERYTHING
    response = client.responses.create(
        model="any",
        input=[{"role": "system", "content": "Book"}, {"role": "user", "content": "hi"}],
        tools=[
            {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}
        ],
    )
    assert isinstance(response, Response)
    assert response.output_text == "Let me see."
    assert [item.type for item in response.output].count("function_call") == 2


def test_openai_client_folds_a_stream(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = EVERYTHING
    with client.responses.stream(
        model="any",
        input="hi",
        tools=[
            {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}
        ],
    ) as events:
        texts = [event.delta for event in events if event.type == "response.output_text.delta"]
        final = events.get_final_response()
    assert "".join(texts) == final.output_text == "Let me see."
    calls = [item for item in final.output if item.type == "function_call"]
    assert [call.parsed_arguments for call in calls] == [{"city": "Paris"}] * 2


def test_openai_client_parses_what_a_schema_demands(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    class Weather(BaseModel):
        city: str

    engine.script = says('{"city":', ' "Paris"}')
    parsed = client.responses.parse(model="any", input="hi", text_format=Weather).output_parsed
    assert parsed == Weather(city="Paris")


def test_an_error_in_a_stream_is_raised(client: openai.OpenAI, engine: FakeEngine) -> None:
    def script(request: GenerationRequest) -> Iterator[Step]:
        events = says("a")(request)
        yield next(events)
        yield next(events)
        yield Failed(DeviceLostError("worker gone"))

    engine.script = script
    with pytest.raises(openai.APIError, match="worker gone"):
        list(client.responses.create(model="any", input="hi", stream=True))
