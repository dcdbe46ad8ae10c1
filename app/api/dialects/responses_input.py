"""The `input` of a Responses request as chat messages.

What one answer consisted of (reasoning, text, calls) comes as items in a row; templates want it as
one message of the assistant.
"""

from app.api import fields
from app.api.dialects.response_items import CALL_PREFIX
from app.api.json_value import Json, JsonObject
from app.errors import RequestError

_ROLES = ("user", "system", "developer", "assistant")
_TEXTS = ("input_text", "output_text", "text")


def read_input(body: JsonObject) -> list[JsonObject]:
    """Return the messages. Raises: RequestError naming the item."""
    value = body.get("input")
    match value:
        case None:
            raise RequestError("'input' is required", "input")
        case str():
            return [{"role": "user", "content": value}]
        case list():
            conversation = _Conversation()
            for i, item in enumerate(value):
                conversation.add(item, f"input[{i}]")
            return conversation.messages
        case _:
            fields.wrong_type("input", value, "a string or an array of items")


class _Conversation:
    """Chat messages made of items."""

    def __init__(self) -> None:
        self.messages: list[JsonObject] = []

    def add(self, item: Json, name: str) -> None:
        """Take the next item in. Raises: RequestError."""
        if not isinstance(item, dict):
            fields.wrong_type(name, item, "an object")
        match item.get("type") or "message":
            case "message":
                self._message(item, name)
            case "reasoning":
                if thought := _thought(item):
                    self._assistant()["reasoning_content"] = thought
            case "function_call":
                message = self._assistant()
                calls = fields.listed(message.get("tool_calls"))
                message["tool_calls"] = [*calls, _call(item, name)]
            case "function_call_output":
                self.messages.append(_output(item, name))
            case other:
                raise RequestError(f"'{name}': items of type {other!r} are not supported", name)

    def _message(self, item: JsonObject, name: str) -> None:
        role = fields.text(item, "role", "")
        if role not in _ROLES:
            raise RequestError(f"'{name}.role' must be one of {', '.join(_ROLES)}", name)
        parts = _parts(item.get("content"), f"{name}.content")
        if role == "assistant":
            message = self._assistant()
            message["content"] = [*fields.listed(message["content"]), *parts]
        else:
            self.messages.append({"role": role, "content": parts})

    def _assistant(self) -> JsonObject:
        """The last message if it is the assistant's, else a new one."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def _parts(value: Json, name: str) -> list[Json]:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        fields.wrong_type(name, value, "a string or an array of parts")
    return [_part(part, f"{name}[{i}]") for i, part in enumerate(value)]


def _part(value: Json, name: str) -> JsonObject:
    match value:
        case {"type": kind, "text": str(text)} if kind in _TEXTS:
            return {"type": "text", "text": text}
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "input_image"}:
            return {"type": "image_url"}  # who reads the chat request says what models cannot take
        case {"type": "input_file"}:
            raise RequestError(f"'{name}': 'input_file' is not supported", name)
        case _:
            raise RequestError(
                f"'{name}' must be a part of type input_text, output_text or refusal with its text",
                name,
            )


def _thought(item: JsonObject) -> str:
    """The text of a reasoning item, else its summary; either may be absent."""
    for key in ("content", "summary"):
        parts = [part for part in fields.array(item, key) if isinstance(part, dict)]
        if texts := [fields.text(part, "text", "") for part in parts]:
            return "\n".join(texts)
    return ""


def _call(item: JsonObject, name: str) -> JsonObject:
    called, arguments = fields.text(item, "name", ""), item.get("arguments")
    if not called or not isinstance(arguments, str):
        raise RequestError(f"'{name}' must have a name and arguments", name)
    return {
        "id": _call_id(item, name),
        "type": "function",
        "function": {"name": called, "arguments": arguments},
    }


def _output(item: JsonObject, name: str) -> JsonObject:
    output = item.get("output")
    return {
        "role": "tool",
        "tool_call_id": _call_id(item, name),
        "content": output if isinstance(output, str) else _parts(output, f"{name}.output"),
    }


def _call_id(item: JsonObject, name: str) -> str:
    """The id that the model gave, without what was put before it in an answer."""
    call_id = fields.text(item, "call_id", "")
    if not call_id:
        raise RequestError(f"'{name}.call_id' is missing", name)
    return call_id.removeprefix(CALL_PREFIX) or call_id
