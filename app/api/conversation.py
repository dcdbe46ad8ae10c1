"""From a chat request to the text that the model continues.

Follows oaicompat_chat_params_parse in llama.cpp's tools/server/server-common.cpp: a last message of
the assistant is continued rather than closed, template arguments come from the command line and
from the request, and tools need --jinja. Tool calls are not parsed out of the answer, so a request
that demands one is refused.
"""

from dataclasses import dataclass

from app.api import fields
from app.api.errors import SERVER, ApiError
from app.api.json_value import Json, JsonObject
from app.api.messages import joined_parts, read_messages, read_tools
from app.api.settings import ChatSettings
from app.errors import RequestError
from app.tokenizer.base import Vocab, without_bos_text
from app.tokenizer.chat_template import ChatTemplate

_CONTINUATIONS: tuple[Json, ...] = (True, "content", "reasoning_content")
_PART_SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template is applied to; `continued` is text of the assistant to go on from."""

    messages: list[JsonObject]
    tools: list[JsonObject]
    continued: str | None
    add_generation_prompt: bool
    kwargs: JsonObject


def read_conversation(body: JsonObject, settings: ChatSettings) -> Conversation:
    """Return the conversation of a chat request. Raises: RequestError, ApiError."""
    tools = _usable_tools(body, settings)
    messages = read_messages(body)
    add_prompt = fields.boolean(body, "add_generation_prompt", True)
    continues = body.get("continue_final_message") in _CONTINUATIONS
    ends_with_assistant = bool(messages) and messages[-1]["role"] == "assistant"
    if not continues and settings.prefill_assistant and ends_with_assistant:
        if len(messages) > 1 and messages[-2]["role"] == "assistant":
            raise RequestError(
                "Cannot have 2 or more assistant messages at the end of the list.", "messages"
            )
        continues, add_prompt = True, False
    if continues and add_prompt and body.get("add_generation_prompt") is not None:
        raise RequestError(
            "Cannot set both add_generation_prompt and continue_final_message to true.",
            "continue_final_message",
        )
    continued = _continued_text(messages) if continues and messages else None
    return Conversation(
        messages if continued is None else messages[:-1],
        tools,
        continued,
        add_prompt or continues,
        _template_arguments(body, settings),
    )


def render(conversation: Conversation, template: ChatTemplate, vocab: Vocab) -> str:
    """Return the prompt, without the BOS that the tokenizer adds. Raises: RequestError."""
    text = template.render(
        conversation.messages,
        tools=conversation.tools or None,
        add_generation_prompt=conversation.add_generation_prompt,
        extra=conversation.kwargs,
    )
    return without_bos_text(text, vocab) + (conversation.continued or "")


def _usable_tools(body: JsonObject, settings: ChatSettings) -> list[JsonObject]:
    tools = read_tools(body)
    choice = body.get("tool_choice")
    if not settings.jinja:
        if tools:
            raise ApiError(SERVER, "tools param requires --jinja flag")
        if choice not in (None, "auto"):
            raise ApiError(SERVER, "tool_choice param requires --jinja flag")
    if choice not in (None, "auto", "none"):
        raise RequestError(
            "'tool_choice' must be auto or none: tool calls are not parsed", "tool_choice"
        )
    if tools and choice != "none" and fields.text(body, "grammar", ""):
        raise RequestError("Cannot use custom grammar constraints with tools.", "grammar")
    return tools


def _continued_text(messages: list[JsonObject]) -> str:
    last = messages[-1]
    if last["role"] != "assistant":
        raise RequestError("only a message of the assistant can be continued", "messages")
    if last.get("tool_calls"):
        raise RequestError("Cannot continue an assistant message that contains tool calls.")
    if last.get("reasoning_content"):
        raise RequestError("continuing after reasoning_content is not supported", "messages")
    return joined_parts(last["content"], _PART_SEPARATOR)


def _template_arguments(body: JsonObject, settings: ChatSettings) -> JsonObject:
    """Arguments of the command line, then those of the request, then OpenAI's own field."""
    kwargs: JsonObject = {"enable_thinking": settings.enable_thinking}
    if settings.reasoning_effort is not None:
        kwargs["reasoning_effort"] = settings.reasoning_effort
    kwargs |= dict(settings.kwargs) | fields.mapping(body, "chat_template_kwargs")
    if not isinstance(kwargs["enable_thinking"], bool):
        fields.wrong_type("enable_thinking", kwargs["enable_thinking"], "a boolean")
    effort = fields.text(body, "reasoning_effort", "")
    if effort == "none":
        kwargs["enable_thinking"] = False
        kwargs.pop("reasoning_effort", None)
    elif effort:
        kwargs["reasoning_effort"] = effort
    return kwargs
