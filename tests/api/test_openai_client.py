"""The official client reads our answers: chat and completions, whole and streamed, errors."""

from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from app.api.settings import ChatSettings, ServerSettings
from app.engine.request import Failed, GenerationRequest
from app.errors import DeviceLostError
from tests.helpers.fake_engine import FakeEngine, Step, says
from tests.helpers.live_server import live_server

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
LOOK_UP: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
}
CALLS_TOOLS = """{% for m in messages %}{{ m.content }}{% if m.tool_calls %}
{%- for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}
{%- endif %}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{# arguments #}"""
CALL = ("<tool_", 'call>{"name": "look_up", "argu', 'ments": {"word": "tea"}}</tool_call>')


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with live_server(FakeEngine(says("Hello", " there"))) as server:
        base_url = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(api_key="none", base_url=base_url, max_retries=0) as made:
            yield made


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="any", messages=HELLO, logprobs=True)
    choice = answer.choices[0]
    assert choice.message.content == "Hello there"
    assert choice.finish_reason == "stop"
    assert answer.usage is not None and answer.usage.completion_tokens == 11
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert len(choice.logprobs.content) == 11


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="any", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Hello there"
    assert [chunk.choices for chunk in chunks].count([]) == 1
    assert chunks[-1].usage is not None


def test_chat_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="any", messages=HELLO) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello there"


def test_completion_with_logprobs_in_both_forms(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="any", prompt="a", logprobs=2, max_tokens=5)
    choice = answer.choices[0]
    assert choice.text == "Hello"
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == list("Hello")
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4]
    assert choice.logprobs.token_logprobs == [-0.5] * 5
    extra = choice.logprobs.model_extra
    assert extra is not None and len(extra["content"]) == 5


def test_completion_stream_has_usage_in_its_last_chunk(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model="any", prompt="a", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello there"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_several_prompts_count_once_each(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="any", prompt=["a", "bc"], n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2 + 3
    assert answer.usage.completion_tokens == 4 * 11


@pytest.fixture
def caller() -> Iterator[openai.OpenAI]:
    settings = ServerSettings(chat=ChatSettings(template=CALLS_TOOLS))
    with live_server(FakeEngine(says(*CALL)), settings) as server:
        base_url = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(api_key="none", base_url=base_url, max_retries=0) as made:
            yield made


def test_a_tool_call(caller: openai.OpenAI) -> None:
    answer = caller.chat.completions.create(model="any", messages=HELLO, tools=[LOOK_UP])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    call = choice.message.tool_calls[0]
    assert call.type == "function" and call.id
    assert (call.function.name, call.function.arguments) == ("look_up", '{"word": "tea"}')


def test_a_tool_call_in_a_stream_with_usage(caller: openai.OpenAI) -> None:
    with caller.chat.completions.stream(
        model="any", messages=HELLO, tools=[LOOK_UP], stream_options={"include_usage": True}
    ) as stream:
        pieces = [
            event.arguments_delta
            for event in stream
            if event.type == "tool_calls.function.arguments.delta"
        ]
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert "".join(pieces) == calls[0].function.arguments == '{"word": "tea"}'
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage is not None and final.usage.completion_tokens == len("".join(CALL))


def test_errors_have_their_type(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="any", messages=[], n=99)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] == "invalid_request_error"


def test_an_error_in_a_stream_is_raised() -> None:
    def script(request: GenerationRequest) -> Iterator[Step]:
        events = says("a")(request)
        yield next(events)
        yield next(events)
        yield Failed(DeviceLostError("worker gone"))

    with live_server(FakeEngine(script)) as server:
        base_url = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(api_key="none", base_url=base_url, max_retries=0) as client:
            stream = client.chat.completions.create(model="any", messages=HELLO, stream=True)
            with pytest.raises(openai.APIError, match="worker gone"):
                list(stream)
