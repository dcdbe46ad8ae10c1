"""How models write reasoning and tool calls: plain data, one class for each kind of writing.

`formats` has the known ones, a parser and a grammar are made of them elsewhere. Marks are literal
text of the answer; "" means that there is none.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """What stands around reasoning."""

    start: str = "<think>"
    end: str = "</think>"


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Calls as JSON objects with name and arguments, between `start` and `end`.

    `listed` says that they stand in an array. Without a `start` the object begins the answer, and
    only the name of a known tool makes it a call; `prefixes` may stand before it then. `id_first`
    is the key of an id that comes before the name, `id_last` of one after the arguments, which
    comes too late to be used; `id_chars` is the length of ids that the template will take back.
    """

    start: str
    end: str
    listed: bool = False
    name_key: str = "name"
    arguments_key: str = "arguments"
    id_first: str = ""
    id_last: str = ""
    id_chars: int = 32
    prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """Calls whose name stands between marks, with JSON arguments after it.

    `start` name `id_mark` id `arguments_mark` arguments `end`; all of them may stand between
    `section_start` and `section_end`. With an `id_prefix` the name has a number after a colon, and
    the id is all of it after the prefix.
    """

    start: str
    arguments_mark: str
    end: str
    section_start: str = ""
    section_end: str = ""
    id_mark: str = ""
    id_prefix: str = ""
    id_chars: int = 32


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """Calls whose arguments stand in tags of their own, strings unquoted.

    `start` name `name_end`, for each argument `key_start` key `key_end` `value_start` value
    `value_end`, then `end`. All calls, or each, may stand between `section_start` and
    `section_end`. One line break on each side of a value is no part of it when `lines` is set.
    """

    start: str
    name_end: str
    key_start: str
    key_end: str
    value_start: str
    value_end: str
    end: str
    section_start: str = ""
    section_end: str = ""
    lines: bool = False
    id_chars: int = 32


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of gpt-oss: `analysis` is reasoning, a recipient makes a call."""


@dataclass(frozen=True, slots=True)
class Recipients:
    """Functionary 3.2: every part goes to `all` or to a function, named on its first line."""


CallShape = JsonCalls | NamedCalls | TaggedCalls | Channels | Recipients


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """One way of writing; `wraps` are marks around content that are no part of it.

    `calls_end_reasoning` says that a model may go over to a call without ending its reasoning.
    """

    name: str
    calls: CallShape | None = None
    reasoning: ReasoningTags | None = None
    wraps: tuple[str, ...] = ()
    calls_end_reasoning: bool = False
