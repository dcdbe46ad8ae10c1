"""What a chat request says: messages, tools, and how to go about the answer.

Follows oaicompat_chat_params_parse in llama.cpp's tools/server/server-common.cpp: a last message of
the assistant is continued rather than closed, template arguments come from the command line and
from the request, and tools need --jinja.
"""

from dataclasses import dataclass
from typing import Final

from app.api import fields
from app.api.chat_format.tools import ToolUse
from app.api.json_value import Json, JsonObject
from app.api.messages import joined_parts, read_messages, read_tools
from app.api.settings import ChatSettings
from app.api.tool_choice import read_tool_use
from app.errors import RequestError

_PART_SEPARATOR: Final = "\n\n"
_CONTINUATIONS: Final[tuple[Json, ...]] = (True, "content", "reasoning_content")
_EXTRACTS: Final = {"none": False, "auto": True, "deepseek": True, "deepseek-legacy": True}


@dataclass(frozen=True, slots=True)
class Continued:
    """The beginning of the answer: the model goes on with the content, or still with reasoning."""

    reasoning: str
    content: str
    in_reasoning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a template is applied to, and how the answer is read.

    `parallel` says whether an answer may hold several calls, None leaves it to the template.
    `budget` is the number of tokens for reasoning, -1 for any.
    """

    messages: list[JsonObject]
    tools: list[JsonObject]
    use: ToolUse
    parallel: bool | None
    continued: Continued | None
    add_generation_prompt: bool
    kwargs: JsonObject
    enable_thinking: bool
    extracts_reasoning: bool
    parses: bool
    budget: int
    budget_message: str


def read_conversation(body: JsonObject, settings: ChatSettings) -> Conversation:
    """Return the conversation of a chat request. Raises: RequestError, ApiError."""
    tools = read_tools(body)
    use = read_tool_use(body, tools, settings)
    messages = read_messages(body)
    mode, add_prompt = _continuation(body, messages, settings)
    continued = _continued(messages, mode) if mode is not None and messages else None
    kwargs = _template_arguments(body, settings)
    return Conversation(
        messages=messages if continued is None else messages[:-1],
        tools=tools,
        use=use,
        parallel=None
        if body.get("parallel_tool_calls") is None
        else fields.boolean(body, "parallel_tool_calls", False),
        continued=continued,
        add_generation_prompt=add_prompt or mode is not None,
        kwargs=kwargs,
        enable_thinking=kwargs["enable_thinking"] is True,
        extracts_reasoning=_extracts_reasoning(body, settings),
        parses=settings.parses and settings.jinja,
        budget=_budget(body, settings),
        budget_message=fields.text(
            body, "reasoning_budget_message", settings.reasoning_budget_message
        ),
    )


def _continuation(
    body: JsonObject, messages: list[JsonObject], settings: ChatSettings
) -> tuple[Json, bool]:
    """How the last message is continued, None if it is not, and whether an answer is asked for."""
    add_prompt = fields.boolean(body, "add_generation_prompt", True)
    wanted = body.get("continue_final_message")
    mode: Json = wanted if wanted in _CONTINUATIONS else None
    ends_with_assistant = bool(messages) and messages[-1]["role"] == "assistant"
    if mode is None and settings.prefill_assistant and ends_with_assistant:
        if len(messages) > 1 and messages[-2]["role"] == "assistant":
            raise RequestError(
                "Cannot have 2 or more assistant messages at the end of the list.", "messages"
            )
        return True, False
    if mode is not None and add_prompt and body.get("add_generation_prompt") is not None:
        raise RequestError(
            "Cannot set both add_generation_prompt and continue_final_message to true.",
            "continue_final_message",
        )
    return mode, add_prompt


def _continued(messages: list[JsonObject], mode: Json) -> Continued:
    last = messages[-1]
    if last["role"] != "assistant":
        raise RequestError("only a message of the assistant can be continued", "messages")
    if last.get("tool_calls"):
        raise RequestError("Cannot continue an assistant message that contains tool calls.")
    reasoning = joined_parts(last.get("reasoning_content"))
    content = joined_parts(last["content"], _PART_SEPARATOR)
    in_reasoning = mode == "reasoning_content" or (mode is True and bool(reasoning) and not content)
    return Continued(reasoning, content, in_reasoning)


def _extracts_reasoning(body: JsonObject, settings: ChatSettings) -> bool:
    name = fields.text(body, "reasoning_format", "")
    if not name:
        return settings.extracts_reasoning
    if name not in _EXTRACTS:
        raise RequestError(
            f"'reasoning_format' must be one of {', '.join(_EXTRACTS)}, not {name}",
            "reasoning_format",
        )
    return _EXTRACTS[name]


def _budget(body: JsonObject, settings: ChatSettings) -> int:
    name = fields.present(body, "reasoning_budget_tokens", "thinking_budget_tokens")
    budget = -1 if name is None else fields.integer(body, name, -1, low=-1)
    return settings.reasoning_budget if budget == -1 else budget


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
