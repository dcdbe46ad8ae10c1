"""Checks the messages and tools of a chat request and brings them into the form templates expect.

Rules are those of common_chat_msgs_parse_oaicompat and oaicompat_chat_params_parse in llama.cpp:
what a message must have, which content parts are known, what is an error of the client (400) and
what the model cannot do (500, as llama-server answers).
"""

from typing import Final

from app.api import fields
from app.api.errors import SERVER, ApiError
from app.api.json_value import Json, JsonObject, dump_json, type_name
from app.errors import RequestError

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


def _arguments(value: Json, name: str) -> str:
    """The arguments as OpenAI has them: text, whatever the template will want of them."""
    if isinstance(value, dict):
        return dump_json(value).decode()
    if not isinstance(value, str):
        fields.wrong_type(f"{name}.tool_calls[].function.arguments", value, "a string")
    return value
