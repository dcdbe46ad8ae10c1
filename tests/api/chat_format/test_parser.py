"""Answers are read the same however they were cut, and nothing of a call is told as content."""

from itertools import pairwise
from time import process_time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.api.chat_format.events import ChatMessage
from app.api.chat_format.parser import Beginning, ParseOptions, new_session
from app.api.chat_format.tools import ToolUse
from tests.api.chat_format.answers import CALLS, TWO_CALLS, USE, Told, known, read, told

GPT_OSS = (
    "<|channel|>analysis<|message|>Let me see<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.get_weather <|constrain|>json<|message|>{"city": "Rom"}'
)


@pytest.mark.parametrize("name", TWO_CALLS)
def test_calls_are_read(name: str) -> None:
    message = read(ParseOptions(known(name), use=USE), [TWO_CALLS[name]])
    assert told(message) == Told(calls=CALLS)


@pytest.mark.parametrize("name", TWO_CALLS)
def test_every_cut_gives_the_same_message(name: str) -> None:
    text, options = TWO_CALLS[name], ParseOptions(known(name), use=USE)
    whole = told(read(options, [text]))
    assert told(read(options, [*text])) == whole
    for at in range(len(text)):
        assert told(read(options, [text[:at], text[at:]])) == whole


PARTS = [
    "Hello", "\n", " ", "{", "}", "[", "]", '"', ",", "<", "<think>", "</think>", "<tool_call>",
    "</tool_call>", '{"name": "stop", "arguments": {}}', '{"name": "', "stop", '"arguments": ',
    "\\", "<function=stop>", "</function>", "<parameter=a>", "</parameter>", "[TOOL_CALLS]",
    "[ARGS]", "[CALL_ID]", "functools", ">>>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>",
    "assistant", "analysis", " to=functions.stop", "é",
]  # fmt: skip
NAMES = [
    "hermes",
    "mistral",
    "mistral-named",
    "llama-3",
    "functionary-v3.2",
    "firefunction",
    "qwen3-coder",
    "gpt-oss",
]


@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    parts=st.lists(st.sampled_from(PARTS), max_size=14),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    beginning=st.sampled_from(Beginning),
    extracts=st.booleans(),
)
@example("hermes", ["<tool_call>", '{"name": "', "stop", '"'], [3, 12], Beginning.FRESH, True)
def test_any_text_cut_anywhere_gives_the_same_message(
    name: str, parts: list[str], cuts: list[int], beginning: Beginning, extracts: bool
) -> None:
    text = "".join(parts)
    options = ParseOptions(known(name), beginning, extracts, use=USE)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(places)]
    whole = read(options, [text])
    assert told(read(options, pieces)) == told(whole)
    assert told(read(options, [*text])) == told(whole)


def test_text_before_and_after_calls_is_content_without_the_space_beside_them() -> None:
    text = f"I look.\n{TWO_CALLS['hermes']}\nDone.  "
    message = read(ParseOptions(known("hermes"), use=USE), [*text])
    assert told(message) == Told("I look.Done.  ", calls=CALLS)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>not json</tool_call>",
        '<tool_call>\n{"nam": 1}\n</tool_call> and <tool_call>',
        "a < b <tool_ca",
        "  \n {} ",
        "<think>x</think>",
    ],
)
def test_what_is_no_call_stays_in_the_content(text: str) -> None:
    assert told(read(ParseOptions(known("hermes"), use=USE), [*text])) == Told(text)


def test_without_tools_calls_are_text() -> None:
    text = TWO_CALLS["hermes"]
    assert read(ParseOptions(known("hermes")), [text]).content == text
    assert read(ParseOptions(known("content-only"), use=USE), [text]).contents == [text]


@pytest.mark.parametrize(
    "text",
    ['{"name": "stop_it", "parameters": {}}', '{"person": {"name": "stop"}}', '{"name": 1}', "{"],
)
def test_json_that_calls_no_known_tool_is_an_answer(text: str) -> None:
    assert told(read(ParseOptions(known("llama-3"), use=USE), [*text])) == Told(text)


def test_a_bare_call_may_follow_its_tag_or_begin_a_line() -> None:
    call = '{"name": "stop", "parameters": {}}'
    for before, content in (("<|python_tag|>", ""), ("Well:\n", "Well:"), (" \n", "")):
        message = read(ParseOptions(known("llama-3"), use=USE), [*(before + call)])
        assert told(message) == Told(content, calls=(("stop", {}),))


def test_arguments_before_the_name_and_inside_a_string_are_taken() -> None:
    texts = (
        '<tool_call>{"arguments": {"city": "Rom"}, "name": "get_weather"}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Rom\\"}"}</tool_call>',
        '<tool_call>{"id": 1, "function": {"name": "get_weather", "parameters": {"city": "Rom"}}}',
    )
    for text in texts:
        message = read(ParseOptions(known("hermes"), use=USE), [*text])
        assert told(message) == Told(calls=(("get_weather", {"city": "Rom"}),))


def test_an_answer_cut_short_tells_what_there_is_of_the_arguments() -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"ci'
    assert told(read(ParseOptions(known("hermes"), use=USE), [*text])).calls == (
        ("get_weather", '{"ci'),
    )


def test_the_beginning_of_a_call_that_a_limit_cut_off_is_no_content() -> None:
    for text in ("Wait. <tool_call>", 'Wait. <tool_call>\n{"na'):
        for cut, content in ((True, "Wait. "), (False, text)):
            session = new_session(ParseOptions(known("hermes"), use=USE))
            message = ChatMessage()
            message.add([*session.feed(text), *session.finish(cut=cut)])
            assert message.content == content


def test_a_broken_call_leaks_nothing_and_the_answer_goes_on() -> None:
    text = '<tool_call>{"name": "stop", "arguments": {"a": [1}</tool_call>Done'
    message = read(ParseOptions(known("hermes"), use=USE), [*text])
    assert message.content == "Done"
    assert [call.name for call in message.tool_calls] == ["stop"]


def test_ids_are_the_models_own_where_they_come_first_and_of_the_templates_length() -> None:
    def ids(name: str) -> list[str]:
        message = read(ParseOptions(known(name), use=USE), [TWO_CALLS[name]])
        return [call.id for call in message.tool_calls]

    assert ids("mistral-named") == ["123456789", "223456789"]
    assert ids("command-r7b") == ["0", "1"]
    assert ids("kimi-k2") == ["functions.get_weather:0", "functions.stop:1"]
    assert ids("mistral") == ["x" * 9] * 2
    assert ids("hermes") == ["x" * 32] * 2


@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_is_told_apart_without_the_space_around_it(opened: bool) -> None:
    text = "\nI see </thin\nk </think>\n\nHello </think>!\n"
    if not opened:
        text = "<think>" + text
    beginning = Beginning.REASONING if opened else Beginning.FRESH
    options = ParseOptions(known("hermes", thinks=True), beginning, use=ToolUse())
    assert told(read(options, [*text])) == Told("Hello </think>!\n", "I see </thin\nk")


def test_reasoning_left_in_the_content_comes_with_what_the_prompt_has_of_it() -> None:
    options = ParseOptions(
        known("hermes", thinks=True),
        Beginning.REASONING,
        extracts_reasoning=False,
        lead="<think>\n",
    )
    assert told(read(options, ["a</think>b"])) == Told("<think>\na</think>b")


def test_reasoning_comes_first_or_not_at_all() -> None:
    options = ParseOptions(known("hermes", thinks=True), use=USE)
    assert told(read(options, [*"Hello <think>a</think>b"])) == Told("Hello <think>a</think>b")
    text = "<think>a <tool_call> b</think>\n" + TWO_CALLS["hermes"]
    assert told(read(options, [*text])) == Told("", "a <tool_call> b", CALLS)


def test_space_at_the_beginning_counts_only_where_nothing_can_come_before_it() -> None:
    for extracts in (True, False):
        thinks = ParseOptions(known("hermes", thinks=True), extracts_reasoning=extracts)
        assert told(read(thinks, [*" \nHello "])) == Told("Hello ")
    assert told(read(ParseOptions(known("hermes")), [*" \nHello "])) == Told(" \nHello ")


def test_a_continued_answer_keeps_the_space_at_its_beginning() -> None:
    reasoning = ParseOptions(
        known("hermes", thinks=True), Beginning.REASONING, continues=True, lead="<think>I'm"
    )
    assert told(read(reasoning, [*" thinking</think>x"])) == Told("x", " thinking")
    content = ParseOptions(known("hermes", thinks=True), Beginning.CONTENT, continues=True)
    assert told(read(content, [*" <think>a"])) == Told(" <think>a")


def test_channels_are_told_apart() -> None:
    message = read(ParseOptions(known("gpt-oss"), use=USE), [*GPT_OSS])
    assert told(message) == Told("", "Let me see", (("get_weather", {"city": "Rom"}),))
    assert told(read(ParseOptions(known("gpt-oss"), use=USE), ["Hello"])) == Told("Hello")


def test_text_is_told_as_soon_as_it_is_certain() -> None:
    options = ParseOptions(known("hermes", thinks=True), use=USE)
    pieces = ["Hel", "lo <", "b> ", "a <tool_call", ">x"]
    assert read(options, pieces).contents == ["Hel", "lo", " <b>", " a", " <tool_call>x"]
    arguments = ['<tool_call>{"name": "stop", "arguments": {"a', '": "b', "c", '"}}</tool_call>']
    assert read(options, arguments).tool_calls[0].pieces == ['{"a', '": "b', "c", '"}']


def test_long_answers_cost_time_in_proportion() -> None:
    def cost(n: int) -> float:
        text = '<tool_call>{"name": "stop", "arguments": {"a": "' + "b" * n + '"}}</tool_call>'
        start = process_time()
        read(ParseOptions(known("hermes"), use=USE), [*text])
        return process_time() - start

    cost(1000)
    # Four times the text; quadratic cost would be sixteen times. A busy machine gets several tries.
    assert any(cost(40_000) < 9 * cost(10_000) for _ in range(8))
