"""Which template goes with which way of writing: a table, looked through from the top.

A template is known by pieces of its source, as llama.cpp knows the ones that it treats specially
(common/chat.cpp). Templates are recognised by what they write for a call, so that a fine-tuned
model that took over its template's text is found as well.
"""

from dataclasses import dataclass
from typing import Final

from app.api.chat_format.shapes import (
    CallShape,
    Channels,
    ChatFormat,
    JsonCalls,
    NamedCalls,
    ReasoningTags,
    Recipients,
    TaggedCalls,
)

CONTENT_ONLY: Final = ChatFormat("content-only")

GENERIC_CALLS: Final = JsonCalls("", "")
"""What a model is asked to write whose template knows no tools."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A way of writing calls, and what a template must have in its source, or must not."""

    name: str
    calls: CallShape
    has: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    wraps: tuple[str, ...] = ()
    calls_end_reasoning: bool = False


def _parameter_tags(section_start: str, section_end: str, *, lines: bool) -> TaggedCalls:
    return TaggedCalls(
        start="<function=",
        name_end=">",
        key_start="<parameter=",
        key_end=">",
        value_start="",
        value_end="</parameter>",
        end="</function>",
        section_start=section_start,
        section_end=section_end,
        lines=lines,
    )


_GLM: Final = TaggedCalls(
    start="<tool_call>",
    name_end="",
    key_start="<arg_key>",
    key_end="</arg_key>",
    value_start="<arg_value>",
    value_end="</arg_value>",
    end="</tool_call>",
)

_MINIMAX: Final = TaggedCalls(
    start='<invoke name="',
    name_end='">',
    key_start='<parameter name="',
    key_end='">',
    value_start="",
    value_end="</parameter>",
    end="</invoke>",
    section_start="<minimax:tool_call>",
    section_end="</minimax:tool_call>",
)

_DEEPSEEK_CALL: Final = "<｜tool▁call▁begin｜>"
_DEEPSEEK_SECTION: Final = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

_DEEPSEEK_R1: Final = NamedCalls(
    f"{_DEEPSEEK_CALL}function<｜tool▁sep｜>",
    "```json",
    "```<｜tool▁call▁end｜>",
    *_DEEPSEEK_SECTION,
)
_DEEPSEEK_V3: Final = NamedCalls(
    _DEEPSEEK_CALL, "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", *_DEEPSEEK_SECTION
)
_KIMI_K2: Final = NamedCalls(
    "<|tool_call_begin|>functions.",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    id_prefix="functions.",
)
_COMMAND_R7B: Final = JsonCalls(
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    listed=True,
    name_key="tool_name",
    arguments_key="parameters",
    id_first="tool_call_id",
)
_COMMAND_R_PLUS: Final = JsonCalls(
    "Action:\n```json", "```", listed=True, name_key="tool_name", arguments_key="parameters"
)
_MISTRAL_LIST: Final = JsonCalls("[TOOL_CALLS]", "", listed=True, id_last="id", id_chars=9)
_LLAMA_3: Final = JsonCalls("", "", arguments_key="parameters", prefixes=("<|python_tag|>",))

_ROWS: Final = (
    _Row("gpt-oss", Channels(), ("<|channel|>",)),
    _Row("functionary-v3.2", Recipients(), (">>>all", ">>>${recipient}")),
    _Row("minimax-m2", _MINIMAX, ("<minimax:tool_call>", "<invoke name=")),
    _Row(
        "seed-oss",
        _parameter_tags("<seed:tool_call>", "</seed:tool_call>", lines=False),
        ("seed:tool_call", "<function=", "<parameter="),
    ),
    _Row(
        "qwen3-coder",
        _parameter_tags("<tool_call>", "</tool_call>", lines=True),
        ("<tool_call>", "<function=", "<parameter="),
        calls_end_reasoning=True,
    ),
    _Row("glm", _GLM, ("<tool_call>", "<arg_key>", "<arg_value>"), lacks=("<role>",)),
    _Row("apriel", JsonCalls("<tool_calls>", "</tool_calls>", listed=True), ("<tool_calls>[",)),
    _Row(
        "hermes",
        JsonCalls("<tool_call>", "</tool_call>"),
        ("<tool_call>", "arguments"),
        lacks=("<role>", "<invoke name="),
    ),
    _Row(
        "mistral-named",
        NamedCalls("[TOOL_CALLS]", "[ARGS]", "", id_mark="[CALL_ID]", id_chars=9),
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    ),
    _Row(
        "mistral-args",
        NamedCalls("[TOOL_CALLS]", "[ARGS]", "", id_chars=9),
        ("[TOOL_CALLS]", "[ARGS]"),
    ),
    _Row("mistral", _MISTRAL_LIST, ("[TOOL_CALLS]",)),
    _Row(
        "command-r7b",
        _COMMAND_R7B,
        ("<|START_ACTION|>", "<|START_RESPONSE|>"),
        wraps=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    _Row(
        "command-r-plus",
        _COMMAND_R_PLUS,
        ("Action:", "tool_name", "<|CHATBOT_TOKEN|>"),
        wraps=("<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    ),
    _Row(
        "kimi-k2",
        _KIMI_K2,
        ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        calls_end_reasoning=True,
    ),
    _Row("deepseek-r1", _DEEPSEEK_R1, ("<｜tool▁calls▁begin｜>", "```json")),
    _Row("deepseek-v3", _DEEPSEEK_V3, ("<｜tool▁calls▁begin｜>",)),
    _Row("functionary-v3.1", NamedCalls("<function=", ">", "</function>"), ("<function=",)),
    _Row("firefunction", JsonCalls("functools", "", listed=True), ("functools[",)),
    _Row("nemotron-v2", JsonCalls("<TOOLCALL>", "</TOOLCALL>", listed=True), ("<TOOLCALL>",)),
    _Row("llama-3", _LLAMA_3, ('Respond in the format {"name": function name',)),
)

_REASONING: Final = (
    ("<|START_THINKING|>", ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>")),
    (
        "[BEGIN FINAL RESPONSE]",
        ReasoningTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ),
    ("seed:think", ReasoningTags("<seed:think>", "</seed:think>")),
    ("[THINK]", ReasoningTags("[THINK]", "[/THINK]")),
    ("</think>", ReasoningTags()),
)
"""Piece of the source → what stands around reasoning."""


def detect_format(source: str, *, supports_tools: bool) -> ChatFormat:
    """Return the way of writing that goes with a template; `supports_tools` says whether it can
    tell the model of tools.
    """
    reasoning = next((tags for piece, tags in _REASONING if piece in source), None)
    for row in _ROWS:
        if all(piece in source for piece in row.has) and not any(
            piece in source for piece in row.lacks
        ):
            return ChatFormat(row.name, row.calls, reasoning, row.wraps, row.calls_end_reasoning)
    if not supports_tools:
        return ChatFormat("generic", GENERIC_CALLS, reasoning)
    return ChatFormat("json", JsonCalls("", "", prefixes=()), reasoning)
