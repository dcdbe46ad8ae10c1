"""What models write for a common conversation, in each known way, and what it says."""

import json
from dataclasses import dataclass

from app.api.chat_format.events import ChatMessage
from app.api.chat_format.formats import CONTENT_ONLY, detect_format
from app.api.chat_format.parser import ParseOptions, new_session
from app.api.chat_format.shapes import ChatFormat, ReasoningTags
from app.api.chat_format.tools import Choice, Tool, ToolUse

TOOLS = (
    Tool(
        "get_weather",
        {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    ),
    Tool("stop", {"type": "object", "properties": {}}),
)
USE = ToolUse(TOOLS, Choice.AUTO, parallel=True)

_SOURCES = {
    "hermes": "<tool_call> arguments",
    "mistral": "[TOOL_CALLS]",
    "mistral-named": "[TOOL_CALLS] [ARGS] [CALL_ID]",
    "mistral-args": "[TOOL_CALLS] [ARGS]",
    "llama-3": 'Respond in the format {"name": function name',
    "command-r7b": "<|START_ACTION|> <|START_RESPONSE|>",
    "command-r-plus": "Action: tool_name <|CHATBOT_TOKEN|>",
    "deepseek-r1": "<｜tool▁calls▁begin｜> ```json",
    "deepseek-v3": "<｜tool▁calls▁begin｜>",
    "kimi-k2": "<|tool_calls_section_begin|> <|tool_call_begin|>",
    "functionary-v3.1": "<function=",
    "functionary-v3.2": ">>>all >>>${recipient}",
    "firefunction": "functools[",
    "apriel": "<tool_calls>[",
    "nemotron-v2": "<TOOLCALL>",
    "qwen3-coder": "<tool_call> <function= <parameter=",
    "seed-oss": "seed:tool_call <function= <parameter=",
    "glm": "<tool_call> <arg_key> <arg_value>",
    "minimax-m2": "<minimax:tool_call> <invoke name=",
    "gpt-oss": "<|channel|>",
}

_WEATHER = '{"city": "Zürich \\"{[\\n", "days": 2}'

TWO_CALLS = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>\n'
    '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>',
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": %s, "id": "123456789"}, '
    '{"name": "stop", "arguments": {}, "id": "223456789"}]',
    "mistral-named": "[TOOL_CALLS]get_weather[CALL_ID]123456789[ARGS]%s"
    "[TOOL_CALLS]stop[CALL_ID]223456789[ARGS]{}",
    "mistral-args": "[TOOL_CALLS]get_weather[ARGS]%s[TOOL_CALLS]stop[ARGS]{}",
    "llama-3": '{"name": "get_weather", "parameters": %s}, {"name": "stop", "parameters": {}}',
    "command-r7b": '<|START_ACTION|>[\n  {"tool_call_id": "0", "tool_name": "get_weather", '
    '"parameters": %s},\n  {"tool_call_id": "1", "tool_name": "stop", "parameters": {}}\n'
    "]<|END_ACTION|>",
    "command-r-plus": 'Action:\n```json\n[{"tool_name": "get_weather", "parameters": %s}, '
    '{"tool_name": "stop", "parameters": {}}]\n```',
    "deepseek-r1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    "```json\n%s\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>stop\n"
    "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek-v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>%s"
    "<｜tool▁call▁end｜><｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "kimi-k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    "<|tool_call_argument_begin|>%s<|tool_call_end|><|tool_call_begin|>functions.stop:1"
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    "functionary-v3.1": "<function=get_weather>%s</function><function=stop>{}</function>",
    "functionary-v3.2": "get_weather\n%s>>>stop\n{}",
    "firefunction": ' functools[{"name": "get_weather", "arguments": %s}, '
    '{"name": "stop", "arguments": {}}]',
    "apriel": '<tool_calls>[{"name": "get_weather", "arguments": %s}, '
    '{"name": "stop", "arguments": {}}]</tool_calls>',
    "nemotron-v2": '<TOOLCALL>[{"name": "get_weather", "arguments": %s}, '
    '{"name": "stop", "arguments": {}}]</TOOLCALL>',
}

_TAGGED = {
    "qwen3-coder": '<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich "{[\n\n'
    "</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=stop>\n</function>\n</tool_call>",
    "seed-oss": '<seed:tool_call>\n<function=get_weather>\n<parameter=city>Zürich "{[\n'
    "</parameter>\n<parameter=days>2</parameter>\n</function>\n<function=stop>\n</function>\n"
    "</seed:tool_call>",
    "glm": '<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich "{[\n</arg_value>\n'
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>stop\n</tool_call>",
    "minimax-m2": '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">'
    'Zürich "{[\n</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n'
    '<invoke name="stop">\n</invoke>\n</minimax:tool_call>',
}
TWO_CALLS = {name: text.replace("%s", _WEATHER) for name, text in TWO_CALLS.items()} | _TAGGED
"""Format → an answer with two calls: the weather of a city with a wild name, then stop."""


@dataclass(frozen=True)
class Told:
    """A message with its arguments as values, to be compared."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, object], ...] = ()


CALLS: tuple[tuple[str, object], ...] = (("get_weather", json.loads(_WEATHER)), ("stop", {}))


def known(name: str, *, thinks: bool = False) -> ChatFormat:
    """Return a format, as its template would be recognised."""
    if name == "content-only":
        return CONTENT_ONLY
    found = detect_format(_SOURCES[name] + (" </think>" if thinks else ""), supports_tools=True)
    assert found.name == name
    assert not thinks or found.reasoning == ReasoningTags()
    return found


def read(options: ParseOptions, pieces: list[str]) -> ChatMessage:
    """Return what an answer says that comes in pieces; no delta may be empty."""
    session = new_session(options, lambda n: "x" * n)
    message = ChatMessage()
    for piece in pieces:
        message.add(session.feed(piece))
    message.add(session.finish())
    assert all(message.contents) and all(message.reasonings)
    assert all(text for call in message.tool_calls for text in call.pieces)
    return message


def told(message: ChatMessage) -> Told:
    """Return the message with its arguments as values; text where they are no JSON."""
    calls = [(call.name, _value(call.arguments)) for call in message.tool_calls]
    return Told(message.content, message.reasoning, tuple(calls))


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
