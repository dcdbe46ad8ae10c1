"""The functions that a request offers, and which of them the model may or must call."""

from dataclasses import dataclass
from enum import Enum

from app.api.json_value import Json, JsonObject


@dataclass(frozen=True, slots=True)
class Tool:
    """One function; `parameters` is the JSON schema of its arguments, an object's."""

    name: str
    parameters: JsonObject

    def takes_string(self, argument: str) -> bool:
        """Return whether an argument is text, as far as the schema says."""
        properties = self.parameters.get("properties")
        schema = properties.get(argument) if isinstance(properties, dict) else None
        return _may_be_string(schema)


class Choice(Enum):
    """Whether tools are called: never, as the model likes, or at least once."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that may be called now; none when `choice` is NONE."""

    tools: tuple[Tool, ...] = ()
    choice: Choice = Choice.NONE
    parallel: bool = False

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the tools."""
        return frozenset(tool.name for tool in self.tools)

    def tool(self, name: str) -> Tool | None:
        """Return the tool of this name."""
        return next((tool for tool in self.tools if tool.name == name), None)


def _may_be_string(schema: Json) -> bool:
    if not isinstance(schema, dict):
        return True
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), list):
            return any(_may_be_string(option) for option in options)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return any(isinstance(value, str) for value in values)
    kind = schema.get("type", "string")
    return "string" in kind if isinstance(kind, list) else kind == "string"
