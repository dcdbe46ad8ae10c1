"""Whatever JSON a client sends: it is understood, or refused by one of our errors."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.constraint import read_constraint
from app.api.conversation import read_conversation
from app.api.dialects.messages_request import chat_from_messages
from app.api.dialects.responses_request import chat_from_responses
from app.api.errors import ApiError, to_api_error
from app.api.json_value import Json, JsonObject, dump_json, parse_json
from app.api.options import REFUSED, WHOLE, read_options
from app.api.prompt import tokenize_prompts
from app.api.settings import ChatSettings, RequestDefaults
from app.errors import RequestError
from app.sampling.params import PARAMS
from tests.helpers.fake_engine import ByteTokenizer

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES: st.SearchStrategy[Json] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
OPTIONS = [
    *REFUSED,
    *(name for row in WHOLE.values() for name in row.names),
    *(param.name for param in PARAMS),
    *("stop", "stream", "stream_options", "response_fields", "verbose", "cache_prompt"),
    *("grammar", "json_schema", "response_format", "tools", "tool_choice", "messages"),
    *("continue_final_message", "add_generation_prompt", "chat_template_kwargs"),
    *("reasoning_effort", "prompt"),
]
BODIES = st.dictionaries(st.sampled_from(OPTIONS), VALUES, max_size=6)
PARTS = st.fixed_dictionaries(
    {},
    optional={"type": st.sampled_from(["text", "image_url", "poem"]) | VALUES, "text": VALUES},
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "tool"]) | VALUES,
        "content": st.text(max_size=5) | st.lists(PARTS, max_size=2) | VALUES,
        "tool_calls": VALUES,
        "name": VALUES,
    },
)

OTHER_FIELDS = ["input", "messages", "system", "tools", "tool_choice", "thinking", "reasoning"]
OTHER_FIELDS += ["text", "include", "output_config", "stop_sequences", "max_tokens", "instructions"]
KINDS = ["message", "reasoning", "function_call", "function_call_output", "function", "custom"]
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "tool_use", "tool_result", "input_text"])},
    optional={"text": VALUES, "name": VALUES, "input": VALUES, "content": VALUES},
)
ITEMS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS), "role": st.sampled_from(["user", "assistant"])},
    optional={
        "content": st.text(max_size=5) | st.lists(BLOCKS, max_size=3) | VALUES,
        "output": st.lists(BLOCKS, max_size=2) | VALUES,
        "summary": VALUES,
        "name": st.just("f") | VALUES,
        "call_id": st.just("c") | VALUES,
        "arguments": st.just("{}") | VALUES,
    },
)


def understood(body: JsonObject) -> None:
    read_options(body, RequestDefaults(), 4)
    read_constraint(body, None)
    tokenize_prompts(ByteTokenizer(), body.get("prompt"))


@settings(max_examples=300, deadline=None)
@given(BODIES)
def test_options_are_read_or_refused(body: JsonObject) -> None:
    try:
        understood(body)
    except (RequestError, ApiError) as error:
        assert to_api_error(error).kind.status in (400, 500)


@settings(max_examples=300, deadline=None)
@given(BODIES, st.lists(MESSAGES, max_size=3) | VALUES)
def test_conversations_are_read_or_refused(body: JsonObject, messages: Json) -> None:
    try:
        read_conversation(body | {"messages": messages}, ChatSettings())
    except (RequestError, ApiError) as error:
        assert to_api_error(error).kind.status in (400, 500)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(OTHER_FIELDS), VALUES | st.lists(ITEMS, max_size=3)))
def test_other_dialects_are_read_or_refused(body: JsonObject) -> None:
    for read in (chat_from_responses, chat_from_messages):
        try:
            read_conversation(read(body), ChatSettings())
        except (RequestError, ApiError) as error:
            assert to_api_error(error).kind.status in (400, 500)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_bytes_are_json_or_refused(data: bytes) -> None:
    try:
        parse_json(data)
    except RequestError:
        return
    json.loads(data.decode("utf-8-sig"))


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_what_is_written_can_be_read_by_any_client(value: Json) -> None:
    written = dump_json(value)
    assert b"\n" not in written, "an event is one line"
    json.loads(written, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
