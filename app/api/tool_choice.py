"""Which tools a chat request offers, and whether the model may, must or must not call one."""

from app.api import fields
from app.api.chat_format.tools import Choice, Tool, ToolUse
from app.api.errors import SERVER, ApiError
from app.api.json_value import Json, JsonObject
from app.api.settings import ChatSettings
from app.errors import RequestError

_CHOICES = {choice.value: choice for choice in Choice}


def read_tool_use(body: JsonObject, tools: list[JsonObject], settings: ChatSettings) -> ToolUse:
    """Return the tools that the model may call; `tools` are those of the request, checked.

    Raises: RequestError, ApiError.
    """
    choice, name = _choice(body.get("tool_choice"))
    if not settings.jinja:
        if tools:
            raise ApiError(SERVER, "tools param requires --jinja flag")
        if choice is not Choice.AUTO:
            raise ApiError(SERVER, "tool_choice param requires --jinja flag")
    offered = tuple(tool for tool in map(_tool, tools) if not name or tool.name == name)
    if name and not offered:
        raise RequestError(f"'tool_choice' names {name!r}, which is not among tools", "tool_choice")
    if choice is Choice.REQUIRED and not offered:
        raise RequestError("'tool_choice' demands a call, but there are no tools", "tool_choice")
    if not offered or choice is Choice.NONE or not fields.boolean(body, "parse_tool_calls", True):
        return ToolUse()
    if fields.text(body, "grammar", ""):
        raise RequestError("Cannot use custom grammar constraints with tools.", "grammar")
    return ToolUse(offered, choice)


def _choice(value: Json) -> tuple[Choice, str]:
    """The choice, and the name of the one function that must be called."""
    match value:
        case None:
            return Choice.AUTO, ""
        case str() if value in _CHOICES:
            return _CHOICES[value], ""
        case {"type": "function", "function": {"name": str(name)}} if name:
            return Choice.REQUIRED, name
        case _:
            raise RequestError(
                "'tool_choice' must be none, auto, required, or an object of type \"function\" "
                "with the function's name",
                "tool_choice",
            )


def _tool(tool: JsonObject) -> Tool:
    function = fields.mapping(tool, "function")
    return Tool(fields.text(function, "name", ""), fields.mapping(function, "parameters"))
