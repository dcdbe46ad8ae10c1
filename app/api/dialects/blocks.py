"""A chat answer as the newer APIs tell it: blocks that are opened, grow and are closed.

A block is a stretch of reasoning, a stretch of text, or one call; blocks follow one another. Used
by the Responses and the Messages dialect, for streams and, with the whole text at once, for whole
answers.
"""

from dataclasses import dataclass
from enum import Enum

from app.api.chat_format.answer import ParsedAnswer
from app.api.chat_format.events import (
    ArgumentsDelta,
    ChatEvent,
    ContentDelta,
    ReasoningDelta,
    ToolCallStart,
)
from app.api.chat_format.parser import ParseOptions
from app.engine.request import StopReason


class BlockKind(Enum):
    """What a block holds."""

    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Block:
    """What is known of a block when it opens; `call_id` and `name` are those of a call."""

    kind: BlockKind
    index: int
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """A block begins."""

    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    """A block got more text."""

    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """A block is complete: `text` is the reasoning, the text, or the arguments of the call."""

    block: Block
    text: str


BlockEvent = Opened | Grown | Closed


class Blocks:
    """The blocks of one answer, made while it grows."""

    def __init__(self, parsing: ParseOptions) -> None:
        self._answer = ParsedAnswer(parsing)
        self._open: Block | None = None
        self._pieces: list[str] = []
        self.closed: list[Closed] = []

    @property
    def has_calls(self) -> bool:
        """Whether anything was called."""
        return bool(self._answer.message.tool_calls)

    def feed(self, text: str) -> list[BlockEvent]:
        """Return what more text of the answer does to the blocks."""
        return self._take(self._answer.feed(text))

    def finish(self, reason: StopReason) -> list[BlockEvent]:
        """Return what the end of the answer does to the blocks."""
        changes = self._take(self._answer.finish(cut=reason is StopReason.LIMIT))
        return changes + self._close()

    def _take(self, events: list[ChatEvent]) -> list[BlockEvent]:
        changes: list[BlockEvent] = []
        for event in events:
            match event:
                case ReasoningDelta():
                    changes += self._grow(BlockKind.REASONING, event.text)
                case ContentDelta():
                    changes += self._grow(BlockKind.TEXT, event.text)
                case ToolCallStart():
                    changes += self._begin(BlockKind.CALL, event.id, event.name)
                case ArgumentsDelta():
                    changes += self._grow(BlockKind.CALL, event.text)
        return changes

    def _grow(self, kind: BlockKind, text: str) -> list[BlockEvent]:
        changes: list[BlockEvent] = []
        block = self._open
        if block is None or block.kind is not kind:
            changes += self._begin(kind)
            block = changes[-1].block
        self._pieces.append(text)
        return [*changes, Grown(block, text)]

    def _begin(self, kind: BlockKind, call_id: str = "", name: str = "") -> list[BlockEvent]:
        changes = self._close()
        self._open = Block(kind, len(self.closed), call_id, name)
        return [*changes, Opened(self._open)]

    def _close(self) -> list[BlockEvent]:
        block, self._open = self._open, None
        if block is None:
            return []
        self.closed.append(Closed(block, "".join(self._pieces)))
        self._pieces.clear()
        return [self.closed[-1]]
