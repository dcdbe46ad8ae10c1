"""Messages are fitted to what a template can take, and nothing a client wrote is lost."""

import dataclasses

import pytest

from app.errors import RequestError
from app.tokenizer.template_caps import Message, TemplateCaps
from app.tokenizer.template_messages import fit_messages

ALL = TemplateCaps(
    supports_string_content=True,
    supports_typed_content=True,
    supports_system_role=True,
    supports_tools=True,
    supports_tool_calls=True,
    supports_parallel_tool_calls=True,
    supports_object_arguments=True,
    supports_preserve_reasoning=True,
    supports_reasoning_effort=True,
)
STRINGS = dataclasses.replace(ALL, supports_typed_content=False)
PARTS = dataclasses.replace(ALL, supports_string_content=False)
NO_SYSTEM = dataclasses.replace(STRINGS, supports_system_role=False)
TWO_PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def fit(messages: list[Message], caps: TemplateCaps, source: str = "") -> list[Message]:
    return fit_messages(messages, caps, source)


def message(role: str, content: object, **more: object) -> Message:
    return {"role": role, "content": content, **more}


def call(arguments: object) -> dict[str, object]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_content_takes_the_form_that_the_template_takes() -> None:
    joined, single = message("user", "a\nb"), message("user", "x")
    assert fit([message("user", TWO_PARTS)], STRINGS) == [joined]
    assert fit([message("user", TWO_PARTS)], PARTS) == [message("user", TWO_PARTS)]
    assert fit([message("user", TWO_PARTS)], ALL) == [message("user", TWO_PARTS)]
    assert fit([single], PARTS) == [message("user", [{"type": "text", "text": "x"}])]
    assert fit([single], STRINGS) == [single]
    assert fit([message("user", None)], STRINGS) == [message("user", None)]


def test_a_part_that_is_no_text_is_refused_and_not_dropped() -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(RequestError, match="image_url"):
        fit([message("user", [*TWO_PARTS, image])], STRINGS)


def test_the_developer_is_the_system_except_where_there_are_channels() -> None:
    given = [message("developer", "x")]
    assert fit(given, ALL) == [message("system", "x")]
    assert fit(given, ALL, "<|channel|>") == given


def test_a_system_message_goes_into_the_next_one_where_it_has_no_place() -> None:
    given = [message("system", "s"), message("user", "u"), message("assistant", "a")]
    assert fit(given, NO_SYSTEM) == [message("user", "s\nu"), message("assistant", "a")]
    assert fit(given, ALL) == given
    parts = [message("system", TWO_PARTS), message("user", TWO_PARTS)]
    assert fit(parts, NO_SYSTEM) == [message("user", "a\nb\na\nb")]
    assert fit([message("system", "alone")], NO_SYSTEM) == [message("user", "alone")]
    assert fit([], NO_SYSTEM) == []


def test_arguments_of_tool_calls_become_objects_where_the_template_reads_them() -> None:
    given = [message("assistant", None, tool_calls=[call('{"x": 1}'), call({"y": 2})])]
    expected = [message("assistant", "", tool_calls=[call({"x": 1}), call({"y": 2})])]
    assert fit(given, ALL) == expected
    as_text = dataclasses.replace(ALL, supports_object_arguments=False)
    assert fit(given, as_text) == [{**given[0], "content": ""}]


def test_arguments_that_are_no_json_are_refused() -> None:
    with pytest.raises(RequestError, match=r"'f'.*no JSON"):
        fit([message("assistant", "", tool_calls=[call("{x")])], ALL)


@pytest.mark.parametrize("calls", ["text", [1, "two"], [{}], [{"function": []}], [call(None)]])
def test_odd_tool_calls_are_left_to_the_template(calls: object) -> None:
    given = [message("assistant", "", tool_calls=calls)]
    assert fit(given, ALL) == given
