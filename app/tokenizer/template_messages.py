"""Fits chat messages to what a template can take, before it is rendered.

Used by `chat_template`. Clients send the OpenAI form whatever the model; templates differ in what
they accept. The changes are those of llama.cpp (common/chat.cpp): text parts are joined, a system
message goes into the next one where the template has no place for it, arguments of tool calls
become objects. Nothing a client wrote is dropped. The messages given are never changed.
"""

import json
from collections.abc import Mapping, Sequence

from app.errors import RequestError
from app.tokenizer.template_caps import Message, TemplateCaps


def fit_messages(messages: Sequence[Message], caps: TemplateCaps, source: str) -> list[Message]:
    """Return the messages in the form that the template with this source takes.

    Raises:
        RequestError: arguments of a tool call are no JSON.
    """
    fitted = [_fit(message, caps, source) for message in messages]
    return fitted if caps.supports_system_role else _merge_system(fitted)


def _fit(message: Message, caps: TemplateCaps, source: str) -> Message:
    fitted = dict(message)
    # gpt-oss, whose format has channels, is the one that knows the developer's role.
    if fitted.get("role") == "developer" and "<|channel|>" not in source:
        fitted["role"] = "system"
    if "content" in fitted:
        fitted["content"] = _fit_content(fitted["content"], caps)
    if fitted.get("tool_calls") and caps.supports_tool_calls:
        fitted["content"] = fitted.get("content") or ""
        if caps.supports_object_arguments:
            fitted["tool_calls"] = _with_objects(fitted["tool_calls"])
    return fitted


def _fit_content(content: object, caps: TemplateCaps) -> object:
    if caps.supports_string_content and not caps.supports_typed_content:
        return joined_text(content)
    if caps.supports_typed_content and not caps.supports_string_content:
        return [{"type": "text", "text": content}] if isinstance(content, str) else content
    return content


def joined_text(content: object) -> object:
    """Return a list of text parts as one string with "\\n" between them; anything else as it is."""
    if not isinstance(content, list):
        return content
    text = ""
    after_marker = False
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "media_marker"):
            raise RequestError(f"content part of type {kind!r}: the chat template takes only text")
        # A media marker stands in for an image and takes no line of its own.
        if kind == "text" and text and not after_marker:
            text += "\n"
        after_marker = kind == "media_marker"
        text += str(part.get("text", ""))
    return text


def _merge_system(messages: list[Message]) -> list[Message]:
    if not messages or messages[0].get("role") != "system":
        return messages
    system = joined_text(messages[0].get("content")) or ""
    if len(messages) == 1:
        return [{**messages[0], "role": "user"}]
    following = joined_text(messages[1].get("content")) or ""
    return [{**messages[1], "content": f"{system}\n{following}"}, *messages[2:]]


def _with_objects(tool_calls: object) -> object:
    if not isinstance(tool_calls, list):
        return tool_calls
    return [_with_object(call) for call in tool_calls]


def _with_object(call: object) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not (
        isinstance(call, Mapping) and isinstance(function, Mapping) and isinstance(arguments, str)
    ):
        return call
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"tool call {function.get('name')!r:.80}: the arguments are no JSON: {error}",
            "messages",
        ) from error
    return {**call, "function": {**function, "arguments": parsed}}
