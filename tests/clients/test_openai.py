"""The official OpenAI client with a real model: tools, usage in streams, schemas, embeddings."""

import json
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import (
    ChatCompletionMessageParam,
    ChatCompletionToolChoiceOptionParam,
    ChatCompletionToolParam,
)

from tests.clients.programs import chat_server
from tests.helpers.assets import asset
from tests.helpers.server_process import Server, running_server

QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the weather in Paris?"}
]
PLACE: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather", "parameters": PLACE},
}
DEMANDED: ChatCompletionToolChoiceOptionParam = {
    "type": "function",
    "function": {"name": "get_weather"},
}
PLACES = ({"city": "Paris"}, {"city": "Rome"})

pytestmark = pytest.mark.clients


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with chat_server() as server, client_of(server) as made:
        yield made


def test_a_demanded_tool_is_called(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any",
        messages=QUESTION,
        tools=[WEATHER],
        tool_choice=DEMANDED,
        temperature=0,
        max_tokens=64,
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    call = choice.message.tool_calls[0]
    assert call.type == "function" and call.id
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) in PLACES


def test_a_call_is_streamed_with_usage_at_the_end(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="any",
        messages=QUESTION,
        tools=[WEATHER],
        tool_choice=DEMANDED,
        temperature=0,
        max_tokens=64,
        stream_options={"include_usage": True},
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    calls = final.choices[0].message.tool_calls
    assert calls is not None and json.loads(calls[0].function.arguments) in PLACES
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage is not None
    assert final.usage.total_tokens == final.usage.prompt_tokens + final.usage.completion_tokens


def test_an_answer_keeps_to_a_schema(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any",
        messages=QUESTION,
        temperature=0,
        max_tokens=64,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "place", "schema": PLACE, "strict": True},
        },
    )
    assert json.loads(answer.choices[0].message.content or "") in PLACES


def test_a_response_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.responses.create(
        model="any", input="Hello!", temperature=0, max_output_tokens=16
    )
    with client.responses.stream(
        model="any", input="Hello!", temperature=0, max_output_tokens=16
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert whole.output_text
    assert final.output_text == whole.output_text
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert whole.usage is not None and whole.usage.output_tokens > 0


def test_embeddings_have_one_direction_in_both_encodings() -> None:
    flags = ("--embeddings", "--pooling", "mean", "-c", "512", "-t", "1")
    with running_server("-m", str(asset("smollm2")), *flags) as server, client_of(server) as client:
        texts = ["A cat sat.", "A dog ran."]
        packed = client.embeddings.create(model="any", input=texts)  # asks for base64 by itself
        plain = client.embeddings.create(model="any", input=texts, encoding_format="float")
    assert len(packed.data) == 2 and len(packed.data[0].embedding) == 576
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
    norms = [sum(x * x for x in row.embedding) for row in plain.data]
    assert norms == pytest.approx([1.0, 1.0], abs=1e-4)
    assert plain.usage.prompt_tokens > 4
