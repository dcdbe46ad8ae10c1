"""Turns a request of Anthropic's Messages API into a chat request.

Follows server_chat_convert_anthropic_to_oai in llama.cpp's tools/server/server-chat.cpp; blocks of
a message keep their order, results of tools become messages of their own. Fields that are not
translated pass through, so that llama-server's own options work here as well.
"""

import re
from typing import Final

from app.api import fields
from app.api.json_value import Json, JsonObject, dump_json
from app.api.options import Refusals, is_nothing, is_one, refuse
from app.errors import RequestError

_DEFAULT_MAX_TOKENS: Final = 4096
_TRANSLATED: Final = frozenset(
    {"system", "messages", "tools", "tool_choice", "stop_sequences", "max_tokens"}
    | {"thinking", "output_config", "output_format", "metadata", "prompt", "response_format"}
)
_ONE_ANSWER: Final = "a message is one answer"
_REFUSED: Final[Refusals] = {
    "mcp_servers": (is_nothing, "MCP servers are not called from here"),
    "container": (is_nothing, "there are no containers"),
    "n": (is_one, _ONE_ANSWER),
    "n_cmpl": (is_one, _ONE_ANSWER),
}
_BILLING: Final = "x-anthropic-billing-header:"
_STAMP: Final = re.compile("(?<=cch=)[^;]{5}(?=;)")
_SAME_STAMP: Final = "fffff"


def chat_from_messages(body: JsonObject) -> JsonObject:
    """Return the chat request. Raises: RequestError naming what is wrong or cannot be honoured."""
    refuse(body, _REFUSED)
    chat = {name: value for name, value in body.items() if name not in _TRANSLATED}
    chat["messages"] = [*_system(body.get("system")), *_messages(body)]
    chat["tools"] = [
        _tool(tool, f"tools[{i}]") for i, tool in enumerate(fields.array(body, "tools"))
    ]
    if stops := fields.texts(body, "stop_sequences"):
        chat["stop"] = [*stops]
    limit = body.get("max_tokens")
    chat["max_tokens"] = _DEFAULT_MAX_TOKENS if limit is None else limit
    return chat | _tool_choice(body) | _output(body) | _thinking(body)


def _system(value: Json) -> list[JsonObject]:
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": "system", "content": _same_stamp(value)}]
    if not isinstance(value, list):
        fields.wrong_type("system", value, "a string or an array of text blocks")
    texts = [_same_stamp(_text(block, f"system[{i}]")) for i, block in enumerate(value)]
    return [{"role": "system", "content": "".join(texts)}]


def _same_stamp(text: str) -> str:
    """A client puts a stamp that differs each time before its prompt: no prefix would be reused."""
    return _STAMP.sub(_SAME_STAMP, text, count=1) if text.startswith(_BILLING) else text


def _text(value: Json, name: str) -> str:
    """The text of a text block."""
    match value:
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            raise RequestError(f"'{name}' must be a text block with a text", name)


def _messages(body: JsonObject) -> list[JsonObject]:
    if body.get("messages") is None:
        raise RequestError("'messages' is required", "messages")
    messages: list[JsonObject] = []
    for i, message in enumerate(fields.array(body, "messages")):
        name = f"messages[{i}]"
        if not isinstance(message, dict):
            fields.wrong_type(name, message, "an object")
        content = message.get("content")
        if isinstance(content, list):
            messages += _Turn(fields.text(message, "role", ""), name).read(content)
        else:
            messages.append(message)
    return messages


class _Turn:
    """One message with blocks, as chat messages: one of its role, one for each tool result."""

    def __init__(self, role: str, name: str) -> None:
        self._role = role
        self._name = name
        self._told: list[JsonObject] = []

    def read(self, blocks: list[Json]) -> list[JsonObject]:
        """Return the chat messages. Raises: RequestError."""
        for i, block in enumerate(blocks):
            name = f"{self._name}.content[{i}]"
            if not isinstance(block, dict):
                fields.wrong_type(name, block, "an object")
            self._add(block, name)
        return self._told or [{"role": self._role, "content": ""}]

    def _add(self, block: JsonObject, name: str) -> None:
        match block.get("type"):
            case "text" | "image":
                self._append("content", _part(block, name))
            case "thinking":
                message = self._own()
                before = fields.text(message, "reasoning_content", "")
                message["reasoning_content"] = before + fields.text(block, "thinking", "")
            case "redacted_thinking":
                pass  # sealed by another server: nobody here can read it
            case "tool_use":
                self._append("tool_calls", _call(block, name))
            case "tool_result":
                self._told.append(_result(block, name))
            case other:
                raise RequestError(f"'{name}': blocks of type {other!r} are not supported", name)

    def _append(self, key: str, value: JsonObject) -> None:
        message = self._own()
        message[key] = [*fields.listed(message.get(key)), value]

    def _own(self) -> JsonObject:
        """The message of the turn's role that is being put together."""
        if not self._told or self._told[-1]["role"] == "tool":
            self._told.append({"role": self._role, "content": ""})
        return self._told[-1]


def _part(block: JsonObject, name: str) -> JsonObject:
    if block.get("type") == "text":
        return {"type": "text", "text": _text(block, name)}
    return {"type": "image_url"}  # whoever reads the chat request says what models cannot take


def _call(block: JsonObject, name: str) -> JsonObject:
    called = fields.text(block, "name", "")
    if not called:
        raise RequestError(f"'{name}.name' is missing", name)
    arguments = dump_json(fields.mapping(block, "input")).decode()
    return {
        "id": fields.text(block, "id", ""),
        "type": "function",
        "function": {"name": called, "arguments": arguments},
    }


def _result(block: JsonObject, name: str) -> JsonObject:
    content = block.get("content")
    if isinstance(content, list):
        parts: list[Json] = []
        for i, part in enumerate(content):
            place = f"{name}.content[{i}]"
            if not isinstance(part, dict) or part.get("type") not in ("text", "image"):
                raise RequestError(f"'{place}' must be a block of type text or image", place)
            parts.append(_part(part, place))
        content = parts
    return {
        "role": "tool",
        "tool_call_id": fields.text(block, "tool_use_id", ""),
        "content": content or "",
    }


def _tool(tool: Json, name: str) -> JsonObject:
    if not isinstance(tool, dict):
        fields.wrong_type(name, tool, "an object")
    kind = fields.text(tool, "type", "custom")
    if kind != "custom":
        raise RequestError(f"'{name}': tools of type {kind!r} are not supported", name)
    function: JsonObject = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": function}


def _tool_choice(body: JsonObject) -> JsonObject:
    choice = fields.mapping(body, "tool_choice")
    chat: JsonObject = {}
    if fields.boolean(choice, "disable_parallel_tool_use", False):
        chat["parallel_tool_calls"] = False
    match choice:
        case {"type": "tool", "name": str(name)}:
            chat["tool_choice"] = {"type": "function", "function": {"name": name}}
        case {"type": "any"}:
            chat["tool_choice"] = "required"
        case {"type": "auto" | "none" as kind}:
            chat["tool_choice"] = kind
        case {"type": _}:
            raise RequestError(
                "'tool_choice.type' must be auto, any, none, or tool with a name", "tool_choice"
            )
        case _:
            pass
    return chat


def _thinking(body: JsonObject) -> JsonObject:
    thinking = fields.mapping(body, "thinking")
    match thinking.get("type"):
        case "enabled":
            budget = thinking.get("budget_tokens")
            return {} if budget is None else {"thinking_budget_tokens": budget}
        case "disabled":
            return {"reasoning_effort": "none"}
        case _:
            return {}


def _output(body: JsonObject) -> JsonObject:
    """The form that the answer must have, and the effort that goes into it."""
    config = fields.mapping(body, "output_config")
    form = fields.mapping(config, "format") or fields.mapping(body, "output_format")
    chat: JsonObject = {}
    if form:
        if form.get("type") != "json_schema":
            raise RequestError("'output_config.format.type' must be json_schema", "output_config")
        schema: JsonObject = {"schema": form.get("schema")}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    if effort := fields.text(config, "effort", ""):
        chat["reasoning_effort"] = effort
    return chat
