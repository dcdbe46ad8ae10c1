"""Checks the messages and tools of a chat request and brings them into the form templates expect.

Rules are those of common_chat_msgs_parse_oaicompat and oaicompat_chat_params_parse in llama.cpp:
what a message must have, which content parts are known, what is an error of the client (400) and
what the model cannot do (500, as llama-server answers).
"""

import json
from collections.abc import Sequence
from typing import Final

from app.api import fields
from app.api.errors import SERVER, ApiError
from app.api.json_value import Json, JsonObject, parse_json, type_name
from app.errors import RequestError
from app.tokenizer.template_caps import TemplateCaps

_MEDIA: Final = {
    "image_url": "image",
    "input_audio": "audio",
    "input_video": "video",
    "video_url": "video",
}
_COPIED: Final = ("name", "tool_call_id", "reasoning_content")


def read_messages(body: JsonObject) -> list[JsonObject]:
    """Return the messages; contents are text or arrays of text parts.

    Raises: RequestError naming the message, ApiError for media.
    """
    value = body.get("messages")
    if value is None:
        raise RequestError("'messages' is required", "messages")
    if not isinstance(value, list):
        fields.wrong_type("messages", value, "an array")
    return [_message(item, f"messages[{i}]") for i, item in enumerate(value)]


def joined_parts(content: Json, separator: str = "\n") -> str:
    """Return a message's content as one text."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return separator.join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def read_tools(body: JsonObject) -> list[JsonObject]:
    """Return the tools, or an empty list. Raises: RequestError."""
    tools: list[JsonObject] = []
    for i, tool in enumerate(fields.array(body, "tools")):
        name = f"tools[{i}]"
        if not isinstance(tool, dict):
            fields.wrong_type(name, tool, "an object")
        if tool.get("type") != "function":
            raise RequestError(f"'{name}.type' must be \"function\"", name)
        function = fields.mapping(tool, "function")
        if not fields.text(function, "name", ""):
            raise RequestError(f"'{name}.function.name' is missing", name)
        known: JsonObject = {
            "name": function["name"],
            "description": fields.text(function, "description", ""),
            "parameters": fields.mapping(function, "parameters"),
        }
        tools.append({"type": "function", "function": known})
    return tools


def fit_messages(
    messages: Sequence[JsonObject], caps: TemplateCaps, source: str
) -> list[JsonObject]:
    """Return the messages as a template can take them, where it lacks an ability.

    `developer` is another word for `system` except in templates of gpt-oss; a system text goes to
    the head of the next message; arguments of calls become text.
    """
    fitted = [dict(message) for message in messages]
    for message in fitted:
        if message["role"] == "developer" and "<|channel|>" not in source:
            message["role"] = "system"
        if "tool_calls" in message and not caps.supports_object_arguments:
            message["tool_calls"] = [_with_text_arguments(c) for c in _list(message["tool_calls"])]
    if len(fitted) > 1 and fitted[0]["role"] == "system" and not caps.supports_system_role:
        texts = (joined_parts(fitted[0]["content"]), joined_parts(fitted[1]["content"]))
        fitted[1:2] = [fitted[1] | {"content": "\n".join(texts)}]
        del fitted[0]
    return fitted


def _with_text_arguments(call: Json) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return call
    if not isinstance(function["arguments"], dict):
        return call
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return call | {"function": function | {"arguments": text}}


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _message(value: Json, name: str) -> JsonObject:
    if not isinstance(value, dict):
        fields.wrong_type(name, value, "an object")
    role = value.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"'{name}.role' must be a string, not {type_name(role)}", name)
    calls = [_tool_call(call, name) for call in fields.array(value, "tool_calls")]
    if "content" not in value and not (role == "assistant" and calls):
        missing = "'content' or 'tool_calls'" if role == "assistant" else "'content'"
        raise RequestError(f"'{name}' must contain {missing}", name)
    message: JsonObject = {"role": role, "content": _content(value.get("content"), name)}
    for key in _COPIED:
        if copied := fields.text(value, key, ""):
            message[key] = copied
    if calls:
        message["tool_calls"] = [*calls]
    return message


def _content(value: Json, name: str) -> Json:
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        fields.wrong_type(f"{name}.content", value, "a string or an array of parts")
    return [_part(part, f"{name}.content[{i}]") for i, part in enumerate(value)]


def _part(value: Json, name: str) -> JsonObject:
    if not isinstance(value, dict):
        fields.wrong_type(name, value, "an object")
    kind = value.get("type")
    if isinstance(kind, str) and kind in _MEDIA:
        raise ApiError(
            SERVER,
            f"{_MEDIA[kind]} input is not supported - hint: if this is unexpected, you may need to "
            "provide the mmproj",
        )
    if kind != "text":
        raise RequestError(f"'{name}': unsupported content[].type", name)
    text = value.get("text")
    if not isinstance(text, str):
        fields.wrong_type(f"{name}.text", text, "a string")
    return {"type": "text", "text": text}


def _tool_call(value: Json, name: str) -> JsonObject:
    """A call that the assistant made, its arguments as an object where they are JSON for one."""
    if not isinstance(value, dict) or value.get("type") != "function":
        raise RequestError(f"'{name}.tool_calls' must be objects of type \"function\"", name)
    function = fields.mapping(value, "function")
    called = fields.text(function, "name", "")
    if not called:
        raise RequestError(f"'{name}.tool_calls[].function.name' is missing", name)
    arguments = _arguments(function.get("arguments"), name)
    call: JsonObject = {
        "type": "function",
        "function": {"name": called, "arguments": arguments},
    }
    if identifier := fields.text(value, "id", ""):
        call["id"] = identifier
    return call


def _arguments(value: Json, name: str) -> Json:
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        fields.wrong_type(f"{name}.tool_calls[].function.arguments", value, "a string")
    try:
        parsed = parse_json(value.encode())
    except RequestError:
        return value
    return parsed if isinstance(parsed, dict) else value
