"""Turns a request of OpenAI's Responses API into a chat request, and tells what answers repeat.

Follows server_chat_convert_responses_to_chatcmpl in llama.cpp's tools/server/server-chat.cpp.
Nothing is stored between requests, so what refers to stored things is refused. Fields that are not
translated pass through, so that llama-server's own options work here as well.
"""

import logging
from typing import Final

from app.api import fields
from app.api.dialects.responses_input import read_input
from app.api.json_value import Json, JsonObject
from app.api.options import Refusals, is_nothing, is_one, refuse
from app.errors import RequestError

_log = logging.getLogger(__name__)

_TRANSLATED: Final = frozenset(
    {"input", "instructions", "tools", "tool_choice", "text", "include", "metadata"}
    | {"max_output_tokens", "reasoning", "prompt", "messages", "response_format"}
)
_NOT_STORED: Final = "responses are not stored: send the whole conversation as 'input'"
_ONE_ANSWER: Final = "a response is one answer"
_REFUSED: Final[Refusals] = {
    "previous_response_id": (is_nothing, _NOT_STORED),
    "conversation": (is_nothing, _NOT_STORED),
    "prompt": (is_nothing, "there are no stored prompts"),
    "background": (is_nothing, "responses are made while the client waits"),
    "n": (is_one, _ONE_ANSWER),
    "n_cmpl": (is_one, _ONE_ANSWER),
}
_ECHOED: Final[JsonObject] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
    "user": None,
}
"""Fields of a request that its response repeats, and what stands there when they are absent."""

_UNCHANGED: Final[JsonObject] = {
    "background": False,
    "previous_response_id": None,
    "store": False,
}
_LOGPROBS: Final = "message.output_text.logprobs"


def chat_from_responses(body: JsonObject) -> JsonObject:
    """Return the chat request. Raises: RequestError naming what is wrong or cannot be honoured."""
    refuse(body, _REFUSED)
    chat = {name: value for name, value in body.items() if name not in _TRANSLATED}
    instructions = fields.text(body, "instructions", "")
    system: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
    chat["messages"] = [*system, *read_input(body)]
    chat |= _tools(body) | _format(body)
    if (limit := body.get("max_output_tokens")) is not None:
        chat["max_tokens"] = limit
    if effort := fields.text(fields.mapping(body, "reasoning"), "effort", ""):
        chat["reasoning_effort"] = effort
    if body.get("top_logprobs") or _LOGPROBS in fields.array(body, "include"):
        chat["logprobs"] = True
    else:
        chat.pop("top_logprobs", None)
    return chat


def echo_of(body: JsonObject) -> JsonObject:
    """Return what every response to a request repeats of it."""
    said = {name: body[name] for name in _ECHOED if body.get(name) is not None}
    return _ECHOED | said | _UNCHANGED


def _tools(body: JsonObject) -> JsonObject:
    """The tools that the model may call here, and whether it must."""
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(fields.array(body, "tools"))]
    functions = [tool for tool in tools if tool is not None]
    choice: Json = body.get("tool_choice")
    match choice:
        case None | str():
            pass
        case {"type": "function", "name": str(name)}:
            choice = {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "mode": str(mode), "tools": [*allowed]}:
            names = [tool.get("name") for tool in allowed if isinstance(tool, dict)]
            functions = [tool for tool in functions if _name(tool) in names]
            choice = mode
        case _:
            raise RequestError(
                "'tool_choice' must be none, auto, required, a function or allowed_tools",
                "tool_choice",
            )
    return {"tools": [*functions], "tool_choice": choice}


def _tool(tool: Json, name: str) -> JsonObject | None:
    """A function, or None for a tool that OpenAI runs itself: agents offer them to any server."""
    if not isinstance(tool, dict):
        fields.wrong_type(name, tool, "an object")
    if tool.get("type") != "function":
        _log.warning("%s is left out: only functions can be called", name)
        return None
    known = ("name", "description", "parameters")
    return {"type": "function", "function": {key: tool.get(key) for key in known}}


def _name(tool: JsonObject) -> Json:
    return fields.mapping(tool, "function").get("name")


def _format(body: JsonObject) -> JsonObject:
    """The form that the answer must have."""
    form = fields.mapping(fields.mapping(body, "text"), "format")
    if form.get("type") != "json_schema":
        return {"response_format": form}
    return {
        "response_format": {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
    }
