"""What the text of a chat answer turns out to say: a sequence of events that knows no dialect.

Every chat endpoint is built on it: a stream tells the events one by one, a whole answer tells their
fold. Deltas are never empty. A call's `ToolCallStart` comes once and before its arguments; calls
are numbered from 0 and follow one another; the joined arguments of a call are JSON text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer proper."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call of the function `name` begins; `id` is the model's own or a fresh one."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the arguments of the call at `index`."""

    index: int
    text: str


ChatEvent = ContentDelta | ReasoningDelta | ToolCallStart | ArgumentsDelta


def merged(events: Sequence[ChatEvent]) -> list[ChatEvent]:
    """Return the events with neighbouring deltas of one text joined."""
    joined: list[ChatEvent] = []
    for _, group in groupby(events, key=_belongs_to):
        first, *others = group
        match first:
            case ContentDelta() | ReasoningDelta():
                texts = [e.text for e in (first, *others) if isinstance(e, type(first))]
                joined.append(type(first)("".join(texts)))
            case ArgumentsDelta():
                texts = [e.text for e in (first, *others) if isinstance(e, ArgumentsDelta)]
                joined.append(ArgumentsDelta(first.index, "".join(texts)))
            case ToolCallStart():
                joined += (first, *others)
    return joined


def _belongs_to(event: ChatEvent) -> tuple[type[ChatEvent], int]:
    match event:
        case ToolCallStart() | ArgumentsDelta():
            return type(event), event.index
        case _:
            return type(event), -1


@dataclass(slots=True)
class ToolCall:
    """A call as far as it is known; `arguments` is JSON text once the answer is complete."""

    id: str
    name: str
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self.pieces)


@dataclass(slots=True)
class ChatMessage:
    """The fold of a chat answer's events."""

    contents: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, events: Iterable[ChatEvent]) -> None:
        """Fold the next events in."""
        for event in events:
            match event:
                case ContentDelta():
                    self.contents.append(event.text)
                case ReasoningDelta():
                    self.reasonings.append(event.text)
                case ToolCallStart():
                    self.tool_calls.append(ToolCall(event.id, event.name))
                case ArgumentsDelta():
                    self.tool_calls[event.index].pieces.append(event.text)

    @property
    def content(self) -> str:
        """The answer proper so far."""
        return "".join(self.contents)

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(self.reasonings)
