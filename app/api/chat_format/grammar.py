"""Writes the grammar that an answer with calls must follow, in llguidance's variant of Lark.

Where a call is demanded the whole answer is one or more calls, after reasoning if the model
reasons. Where calls are allowed the same rules bind from the mark of a call on; the engine looks
for it. Arguments follow the tool's JSON schema, so what is told to the client fits what it offered.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.api.chat_format.shapes import (
    CallShape,
    Channels,
    JsonCalls,
    NamedCalls,
    ReasoningTags,
    Recipients,
    TaggedCalls,
)
from app.api.chat_format.tools import Tool, ToolUse
from app.api.json_value import Json, JsonObject, dump_json
from app.sampling.grammar.json_schema import prepare_schema
from app.sampling.grammar.lark import HEADER

_ANY_OBJECT: Final[JsonObject] = {"type": "object"}
_LEXEMES: Final = "ANY: /(.|\\n)*/\nWS: /[ \\t\\r\\n]{1,20}/\nID: /[A-Za-z0-9_-]{1,64}/\n"


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning before what the grammar is about; `opened` when the prompt began it."""

    tags: ReasoningTags
    opened: bool


def demand_calls(shape: CallShape, use: ToolUse, thought: Thought | None) -> str:
    """Return the grammar of an answer that calls.

    Raises: RequestError for a schema that cannot be followed.
    """
    return _document(f"calls WS?\n{_calls(shape, use)}", thought)


def allow_calls(shape: CallShape, use: ToolUse) -> str | None:
    """Return the grammar of an answer from its first call mark on; None where there is no mark.

    Raises: RequestError for a schema that cannot be followed.
    """
    mark = call_mark(shape)
    if not mark:
        return None
    rest = f"(marked call_rest)+ ANY\nmarked[lazy]: ANY {_quoted(mark)}\n"
    return _document(rest + _without_mark(_calls(shape, use), mark), None)


def call_mark(shape: CallShape) -> str:
    """Return the text at which a call surely begins, "" if there is none."""
    match shape:
        case JsonCalls():
            return shape.start
        case NamedCalls() | TaggedCalls():
            return shape.section_start or shape.start
        case _:
            return ""


def thoughtful_json(schema: str, thought: Thought) -> str:
    """Return the grammar of JSON by a schema after reasoning. Raises: RequestError."""
    return _document(f"WS? answer\nanswer: %json {prepare_schema(schema)}\n", thought)


def _document(rest: str, thought: Thought | None) -> str:
    before = ""
    if thought is not None:
        rest += f"thought[lazy]: ANY {_quoted(thought.tags.end)}\n"
        started = "thought WS?"
        if not thought.opened:
            started = f"({_quoted(thought.tags.start)} {started})?"
        before = f"{started} "
    return f"{HEADER}start: {before}{rest}{_LEXEMES}"


def _calls(shape: CallShape, use: ToolUse) -> str:
    """Return the rules of `calls`: one call, or several where they may be parallel."""
    match shape:
        case JsonCalls():
            return _json_calls(shape, use)
        case NamedCalls():
            return _named_calls(shape, use)
        case TaggedCalls():
            return _tagged_calls(shape, use)
        case Channels():
            return _channel_calls(use)
        case Recipients():
            return _recipient_calls(use)


def _without_mark(rules: str, mark: str) -> str:
    """Return the rules with `call_rest` for `calls` after its first mark."""
    head, quoted = "calls: ", _quoted(mark)
    assert rules.startswith(f"{head}{quoted} "), "calls begin with their mark"
    return f"call_rest: {rules[len(head) + len(quoted) + 1 :]}"


def _json_calls(shape: JsonCalls, use: ToolUse) -> str:
    more = ' (WS? "," WS? call)*' if use.parallel and (shape.listed or not shape.start) else ""
    inner = f'"[" WS? call{more} WS? "]"' if shape.listed else f"call{more}"
    end = f" WS? {_quoted(shape.end)}" if shape.end else ""
    one = f"{_quoted(shape.start)} WS? {inner}{end}" if shape.start else f"{inner}{end}"
    repeat = use.parallel and shape.start and shape.end and not shape.listed
    again = f" (WS? {one})*" if repeat else ""
    return f"calls: {one}{again}\n" + _tool_rules(use, lambda tool: _json_object(shape, tool))


def _json_object(shape: JsonCalls, tool: Tool) -> str:
    def field(key: str, value: str) -> str:
        return f'{_quoted(json.dumps(key))} WS? ":" WS? {value}'

    fields = [
        field(shape.name_key, _quoted(json.dumps(tool.name))),
        field(shape.arguments_key, _schema(tool)),
    ]
    if shape.id_first:
        fields.insert(0, field(shape.id_first, '"\\"" ID "\\""'))
    if shape.id_last:
        fields.append(field(shape.id_last, f'/"[A-Za-z0-9]{{{shape.id_chars}}}"/'))
    return '"{" WS? ' + ' WS? "," WS? '.join(fields) + ' WS? "}"'


def _named_calls(shape: NamedCalls, use: ToolUse) -> str:
    end = f" WS? {_quoted(shape.end)}" if shape.end else ""
    one = f"{_quoted(shape.start)} call{end}"
    more = f" (WS? {one})*" if use.parallel else ""
    body = f"{one}{more}"
    if shape.section_start:
        body = f"{_quoted(shape.section_start)} WS? {body} WS? {_quoted(shape.section_end)}"
    identifier = f" {_quoted(shape.id_mark)} ID" if shape.id_mark else ""
    if shape.id_prefix:
        identifier = ' ":" /[0-9]{1,4}/'
    mark = _quoted(shape.arguments_mark)
    return f"calls: {body}\n" + _tool_rules(
        use, lambda tool: f"{_quoted(tool.name)} WS?{identifier} {mark} WS? {_schema(tool)}"
    )


def _tagged_calls(shape: TaggedCalls, use: ToolUse) -> str:
    one = f"{_quoted(shape.start)} call WS? {_quoted(shape.end)}"
    if shape.section_start:
        # Some put all calls into one section, some each into its own.
        inner = f"{one} (WS? {one})*" if use.parallel else one
        one = f"{_quoted(shape.section_start)} WS? {inner} WS? {_quoted(shape.section_end)}"
    more = f" (WS? {one})*" if use.parallel else ""
    text = f"text_value[lazy]: ANY {_quoted(shape.value_end)}\n"
    return f"calls: {one}{more}\n{text}" + _tool_rules(use, lambda tool: _tags(shape, tool))


def _tags(shape: TaggedCalls, tool: Tool) -> str:
    """Required arguments in the schema's order, the others in any place after them."""
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required")
    names = list(properties) if isinstance(properties, dict) else []
    needed = [name for name in names if isinstance(required, list) and name in required]
    spare = [_tag(shape, tool, name) for name in names if name not in needed]
    parts = [_tag(shape, tool, name) for name in needed]
    if spare:
        parts.append(f"({' | '.join(spare)})*")
    name_end = f" {_quoted(shape.name_end)}" if shape.name_end else ""
    return f"{_quoted(tool.name)}{name_end} {' '.join(parts)}"


def _tag(shape: TaggedCalls, tool: Tool, argument: str) -> str:
    """White space before a tag belongs to it: the value before ends with its own mark."""
    value_start = f"WS? {_quoted(shape.value_start)} " if shape.value_start else ""
    kinds = tool.kinds(argument)
    if not kinds or "string" in kinds:
        value = "text_value"
    else:
        schema = _property_schema(tool, argument)
        value = f"WS? %json {schema} WS? {_quoted(shape.value_end)}"
    key = f"{_quoted(shape.key_start + argument + shape.key_end)}"
    return f"(WS? {key} {value_start}{value})"


def _channel_calls(use: ToolUse) -> str:
    """One call on the channel `commentary`, after reasoning on `analysis` if there is any."""
    head = _quoted("<|channel|>commentary to=functions.")
    form = _quoted(" <|constrain|>json<|message|>")
    thought = (
        f"{_quoted('<|channel|>analysis<|message|>')} analysis {_quoted('<|start|>assistant')}"
    )
    rules = f'calls: ({thought})? {head} call\nanalysis[lazy]: ANY "<|end|>"\n'
    return rules + _tool_rules(use, lambda tool: f"{_quoted(tool.name)} {form} {_schema(tool)}")


def _recipient_calls(use: ToolUse) -> str:
    more = ' (WS? ">>>" call)*' if use.parallel else ""
    rules = f"calls: call{more}\n"
    return rules + _tool_rules(use, lambda tool: f'{_quoted(tool.name)} "\\n" {_schema(tool)}')


def _tool_rules(use: ToolUse, write: Callable[[Tool], str]) -> str:
    names = [f"call{i}" for i in range(len(use.tools))]
    rules = [f"{name}: {write(tool)}" for name, tool in zip(names, use.tools, strict=True)]
    return "\n".join([f"call: {' | '.join(names)}", *rules]) + "\n"


def _schema(tool: Tool) -> str:
    return f"%json {_prepared(tool.parameters or _ANY_OBJECT)}"


def _property_schema(tool: Tool, argument: str) -> str:
    """The schema of one argument; definitions that it refers to come along."""
    properties = tool.parameters["properties"]
    assert isinstance(properties, dict), "the argument was found in the properties"
    schema = properties[argument]
    shared: JsonObject = {
        key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters
    }
    return _prepared({**schema, **shared} if isinstance(schema, dict) else schema)


def _prepared(schema: Json) -> str:
    return prepare_schema(dump_json(schema).decode())


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
