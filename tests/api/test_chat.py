"""POST /v1/chat/completions and /apply-template: prompts, answers, streams, errors."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.api.settings import ChatSettings
from app.engine.request import Failed, GenerationRequest, Started, StopReason
from app.errors import ContextExceededError, DeviceLostError
from tests.helpers.fake_engine import FakeEngine, Step, finished, pieces, says
from tests.helpers.live_server import SETTINGS, LiveServer, live_server
from tests.helpers.sse import read_events

CHAT = "/v1/chat/completions"
HELLO: list[dict[str, object]] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(says("Hello", " there", "!"))


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[LiveServer]:
    with live_server(engine) as live:
        yield live


def chunks_of(server: LiveServer, **body: object) -> list[dict[str, Any]]:
    """Return the chunks of a stream that must end with [DONE]."""
    *chunks, last = read_events(server, CHAT, {"messages": HELLO, "stream": True} | body)
    assert last == "[DONE]"
    return [chunk for chunk in chunks if isinstance(chunk, dict)]


def test_whole_answer(server: LiveServer) -> None:
    answer = server.client.post("/chat/completions", json={"messages": HELLO}).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-") and len(answer["id"]) == 9 + 32
    assert answer["system_fingerprint"].startswith("b")
    assert answer["model"] == "fake"
    assert answer["choices"] == [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "Hello there!", "refusal": None},
        }
    ]
    n_prompt = len("<s>[user]hi[assistant]") - len("<s>") + 1
    assert answer["usage"] == {
        "prompt_tokens": n_prompt,
        "completion_tokens": 12,
        "total_tokens": n_prompt + 12,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert answer["timings"]["predicted_n"] == 12
    assert "__verbose" not in answer


def test_length_is_the_reason_at_the_limit(server: LiveServer) -> None:
    body = {"messages": HELLO, "max_tokens": 5}
    answer = server.client.post(CHAT, json=body).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"]["content"] == "Hello"


def test_choices_have_indexes_and_one_usage(server: LiveServer) -> None:
    answer = server.client.post(CHAT, json={"messages": HELLO, "n": 2}).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 24
    assert answer["usage"]["prompt_tokens"] == 20


def test_stream_begins_with_the_role_and_ends_with_an_empty_delta(server: LiveServer) -> None:
    chunks = chunks_of(server)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": None},
        {"content": "Hello"},
        {"content": " there"},
        {"content": "!"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 4 + ["stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert ["timings" in chunk for chunk in chunks] == [False] * 4 + [True]
    assert not any("usage" in chunk for chunk in chunks)


def test_usage_comes_in_a_chunk_of_its_own_when_asked_for(server: LiveServer) -> None:
    chunks = chunks_of(server, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    assert "timings" in chunks[-1] and "timings" not in chunks[-2]


def test_stream_of_several_choices_has_one_usage_for_all(server: LiveServer) -> None:
    chunks = chunks_of(server, n=2, stream_options={"include_usage": True})
    texts = {0: "", 1: ""}
    for chunk in chunks[:-1]:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == {0: "Hello there!", 1: "Hello there!"}
    assert chunks[-1]["usage"]["completion_tokens"] == 24


def test_timings_of_each_chunk_but_the_first(server: LiveServer) -> None:
    chunks = chunks_of(server, timings_per_token=True)
    assert ["timings" in chunk for chunk in chunks] == [False, True, True, True, True]


def test_progress_chunks_say_the_role_once(server: LiveServer) -> None:
    chunks = chunks_of(server, return_progress=True)
    assert [c["choices"][0]["delta"] for c in chunks[:2]] == [
        {"role": "assistant", "content": None},
        {},
    ]
    processed = [c["prompt_progress"]["processed"] for c in chunks if "prompt_progress" in c]
    assert processed == [0, 20]
    assert [c for c in chunks if "role" in c["choices"][0]["delta"]] == [chunks[0]]


def test_tokens_without_text_make_no_empty_delta_but_keep_their_probabilities(
    engine: FakeEngine, server: LiveServer
) -> None:
    def script(request: GenerationRequest) -> Iterator[Step]:
        yield Started(0, 1, 0)
        (piece,) = pieces(request, ["é"])
        yield replace(piece, text="", tokens=piece.tokens[:1], logprobs=piece.logprobs[:1])
        yield replace(piece, tokens=piece.tokens[1:], logprobs=piece.logprobs[1:])
        yield finished(request, 2, StopReason.EOS)

    engine.script = script
    chunks = chunks_of(server, logprobs=True, top_logprobs=1)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [c["delta"] for c in choices] == [
        {"role": "assistant", "content": None},
        {"content": "é"},
        {},
    ]
    assert [entry["bytes"] for entry in choices[1]["logprobs"]["content"]] == [[0xC3], [0xA9]]


def test_logprobs_are_a_switch_with_twenty_candidates(
    engine: FakeEngine, server: LiveServer
) -> None:
    body = {"messages": HELLO, "logprobs": True}
    content = server.client.post(CHAT, json=body).json()["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == "Hello there!"
    assert len(content[0]["top_logprobs"]) == 20
    answer = server.client.post(CHAT, json={"messages": HELLO, "top_logprobs": 2})
    assert answer.status_code == 400


def test_verbose_tells_the_prompt(server: LiveServer) -> None:
    answer = server.client.post(CHAT, json={"messages": HELLO, "verbose": True}).json()
    assert answer["__verbose"]["prompt"] == "<s>[user]hi[assistant]"
    assert chunks_of(server, verbose=True)[-1]["__verbose"]["content"] == ""


def prompt_of(server: LiveServer, messages: list[dict[str, object]], **body: object) -> str:
    answer = server.client.post("/apply-template", json={"messages": messages, **body})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["prompt"])


def test_template_gets_roles_and_joined_parts(server: LiveServer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages: list[dict[str, object]] = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts},
    ]
    assert prompt_of(server, messages) == "[system]be brief[user]a\nb[assistant]"


def test_the_assistants_last_message_is_continued(server: LiveServer) -> None:
    messages: list[dict[str, object]] = [*HELLO, {"role": "assistant", "content": "Once"}]
    assert prompt_of(server, messages) == "[user]hi[assistant]Once"
    explicit = {"continue_final_message": True, "add_generation_prompt": False}
    assert prompt_of(server, messages, **explicit) == "[user]hi[assistant]Once"
    parts = [{"type": "text", "text": "On"}, {"type": "text", "text": "ce"}]
    messages[-1] = {"role": "assistant", "content": parts}
    assert prompt_of(server, messages) == "[user]hi[assistant]On\n\nce"


def test_generation_prompt_can_be_left_out(server: LiveServer) -> None:
    assert prompt_of(server, [*HELLO], add_generation_prompt=False) == "[user]hi"


def test_tools_reach_the_template(server: LiveServer) -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
    assert "(tools)look_up" in prompt_of(server, [*HELLO], tools=tools)


def test_tokens_of_a_conversation_are_counted(server: LiveServer) -> None:
    answer = server.client.post("/chat/completions/input_tokens", json={"messages": HELLO})
    assert answer.json() == {"input_tokens": 20, "object": "response.input_tokens"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": "hi"},
        {"messages": [1]},
        {"messages": [{}]},
        {"messages": [{"role": 1}]},
        {"messages": [{"role": "system", "content": 1}]},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "assistant"}]},
        {"messages": [{"role": "user", "content": [{"type": "poem"}]}]},
        {"messages": [*HELLO, *[{"role": "assistant", "content": "a"}] * 2]},
        {
            "messages": [*HELLO, {"role": "assistant", "content": "a"}],
            "add_generation_prompt": True,
            "continue_final_message": True,
        },
        {"messages": HELLO, "continue_final_message": True, "add_generation_prompt": False},
        {"messages": HELLO, "response_format": {"type": "sound"}},
        {"messages": HELLO, "response_format": {"type": "json_object", "schema": 1}},
        {"messages": HELLO, "tools": [{"type": "poem"}]},
        {"messages": HELLO, "tool_choice": "required"},
        {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": "yes"}},
    ],
)
def test_malformed_requests_are_refused_in_one_form(
    server: LiveServer, body: dict[str, object]
) -> None:
    answer = server.client.post(CHAT, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == 400
    assert error["message"]


def test_images_are_refused_as_llama_server_does(server: LiveServer) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    answer = server.client.post(CHAT, json={"messages": [{"role": "user", "content": [part]}]})
    assert answer.status_code == 500
    assert "image input is not supported" in answer.json()["error"]["message"]


def test_tools_need_jinja(engine: FakeEngine) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    with live_server(engine, replace(SETTINGS, chat=ChatSettings(jinja=False))) as server:
        answer = server.client.post(CHAT, json={"messages": HELLO, "tools": tools})
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "tools param requires --jinja flag"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_refused_before_any_event(
    engine: FakeEngine, server: LiveServer, stream: bool
) -> None:
    engine.refuses = ContextExceededError("request (600 tokens) exceeds …", 600, 512)
    answer = server.client.post(CHAT, json={"messages": HELLO, "stream": stream})
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "code": 400,
        "message": "request (600 tokens) exceeds …",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 600,
        "n_ctx": 512,
    }


def failing(after: int) -> FakeEngine:
    """An engine that loses a device after this many events."""

    def script(request: GenerationRequest) -> Iterator[Step]:
        events = says("a", "b")(request)
        for _ in range(after):
            yield next(events)
        yield Failed(DeviceLostError("worker RPC0 10.0.0.2:50052 is gone"))

    return FakeEngine(script)


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_start_has_a_status(stream: bool) -> None:
    with live_server(failing(after=0)) as server:
        answer = server.client.post(CHAT, json={"messages": HELLO, "stream": stream})
    assert answer.status_code == 503
    assert "10.0.0.2" in answer.json()["error"]["message"]


def test_a_failure_in_a_stream_is_an_event_and_there_is_no_done() -> None:
    with live_server(failing(after=2)) as server:
        events = read_events(server, CHAT, {"messages": HELLO, "stream": True})
    assert "[DONE]" not in events
    assert events[-1] == {
        "error": {
            "code": 503,
            "message": "worker RPC0 10.0.0.2:50052 is gone",
            "type": "unavailable_error",
        }
    }


def test_a_failure_of_one_choice_ends_the_others() -> None:
    engine = failing(after=2)
    with live_server(engine) as server:
        answer = server.client.post(CHAT, json={"messages": HELLO, "n": 2})
    assert answer.status_code == 503
