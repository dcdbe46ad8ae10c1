"""The functions that a request offers, and which of them the model may or must call."""

from dataclasses import dataclass
from enum import Enum

from app.api.json_value import Json, JsonObject


@dataclass(frozen=True, slots=True)
class Tool:
    """One function; `parameters` is the JSON schema of its arguments, an object's."""

    name: str
    parameters: JsonObject

    def kinds(self, argument: str) -> frozenset[str]:
        """Return JSON's names of the types that an argument may have, none when it may be any."""
        properties = self.parameters.get("properties")
        schema = properties.get(argument) if isinstance(properties, dict) else None
        return _kinds(schema)


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


def kind_of(value: Json) -> str:
    """Return JSON schema's name for the type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"


def _kinds(schema: Json) -> frozenset[str]:
    if not isinstance(schema, dict):
        return frozenset()
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), list):
            kinds = [_kinds(option) for option in options]
            return frozenset().union(*kinds) if all(kinds) else frozenset()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(map(kind_of, values))
    kind = schema.get("type")
    named = kind if isinstance(kind, list) else [kind]
    known = [name for name in named if isinstance(name, str)]
    return frozenset("number" if name == "integer" else name for name in known)
