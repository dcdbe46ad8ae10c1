"""Grammars of calls take what models write in each way, and nothing that the tools do not allow."""

from functools import lru_cache

import pytest

from app.api.chat_format.grammar import Thought, allow_calls, demand_calls, thoughtful_json
from app.api.chat_format.parser import ParseOptions
from app.api.chat_format.shapes import ReasoningTags
from app.api.chat_format.tools import Choice, Tool, ToolUse
from app.errors import RequestError
from app.sampling.grammar.matcher import GrammarEngine, TokenTable
from tests.api.chat_format.answers import TOOLS, TWO_CALLS, USE, known, read

END = 256
ONE = ToolUse(TOOLS, Choice.REQUIRED)


@lru_cache(maxsize=1)
def engine() -> GrammarEngine:
    return GrammarEngine(TokenTable([bytes([i]) for i in range(256)] + [b""], frozenset({END})))


def fits(grammar: str, text: str) -> bool:
    """Return whether a text is taken as a whole."""
    constraint = engine().constraint(grammar)
    for byte in text.encode():
        if not constraint.allows(byte):
            return False
        constraint.accept(byte)
    return constraint.allows(END)


def demand(name: str, use: ToolUse = USE, thought: Thought | None = None) -> str:
    shape = known(name).calls
    assert shape is not None
    return demand_calls(shape, use, thought)


@pytest.mark.parametrize("name", TWO_CALLS)
def test_what_models_write_fits(name: str) -> None:
    text = TWO_CALLS[name].lstrip()
    assert fits(demand(name), text)
    assert not fits(demand(name), f"Hello {text}")
    assert not fits(demand(name), text.replace("get_weather", "get_whether"))
    assert not fits(demand(name, ONE), text), "one call at a time"


@pytest.mark.parametrize("name", TWO_CALLS)
def test_arguments_follow_the_schema(name: str) -> None:
    text = TWO_CALLS[name].lstrip()
    for_days = {"qwen3-coder": "\n2\n", "glm": ">2<", "seed-oss": ">2<", "minimax-m2": ">2<"}
    days = for_days.get(name, '"days": 2')
    assert days in text
    assert not fits(demand(name), text.replace(days, days.replace("2", "two")))


@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_may_come_first(opened: bool) -> None:
    thought = Thought(ReasoningTags(), opened)
    text = 'I see a <tool_call> {"\n</think>\n\n' + TWO_CALLS["hermes"]
    assert fits(demand("hermes", USE, thought), text if opened else f"<think>{text}")
    if opened:
        assert not fits(demand("hermes", USE, thought), TWO_CALLS["hermes"])
    else:
        assert fits(demand("hermes", USE, thought), TWO_CALLS["hermes"])
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}}'
    json_text = 'hm</think>\n{"a": 1}'
    assert fits(thoughtful_json(schema, thought), json_text if opened else f"<think>{json_text}")
    assert not fits(thoughtful_json(schema, thought), json_text.replace("1", "x"))


@pytest.mark.parametrize("name", [n for n in TWO_CALLS if n not in ("llama-3", "functionary-v3.2")])
def test_from_the_mark_of_a_call_on_text_fits_that_holds_calls(name: str) -> None:
    shape = known(name).calls
    assert shape is not None
    grammar = allow_calls(shape, USE)
    assert grammar is not None
    assert fits(grammar, f"Let me see. {TWO_CALLS[name]} Done.")
    assert not fits(grammar, TWO_CALLS[name].replace("get_weather", "get_whether"))


def test_channels_demand_a_call_to_a_function() -> None:
    call = "<|channel|>commentary to=functions.stop <|constrain|>json<|message|>{}"
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    assert fits(demand("gpt-oss"), call)
    assert fits(demand("gpt-oss"), thought + call)
    assert not fits(demand("gpt-oss"), thought + "<|channel|>final<|message|>Hello")
    message = read(ParseOptions(known("gpt-oss"), use=USE), [thought + call])
    assert [call.name for call in message.tool_calls] == ["stop"]


def test_a_schema_that_cannot_be_followed_is_refused() -> None:
    use = ToolUse((Tool("f", {"type": "object", "properties": {"a": 1}}),), Choice.REQUIRED)
    with pytest.raises(RequestError):
        fits(demand("hermes", use), "")
