"""Where parsers put what they read: texts without white space at their edges, numbered calls."""

from collections.abc import Callable
from dataclasses import dataclass

from app.api.chat_format.events import (
    ArgumentsDelta,
    ChatEvent,
    ContentDelta,
    ReasoningDelta,
    ToolCallStart,
)
from app.api.chat_format.reader import SPACE, Reader


class TextWriter:
    """Makes deltas of one kind; white space at the end waits for text that follows it."""

    def __init__(self, reader: Reader, event: type[ContentDelta] | type[ReasoningDelta]) -> None:
        self._reader = reader
        self._event: Callable[[str], ChatEvent] = event
        self._held = ""
        self._skips = False

    def write(self, text: str) -> None:
        """Add text."""
        text = self._held + text
        if self._skips:
            text = text.lstrip(SPACE)
        body = text.rstrip(SPACE)
        self._held = text[len(body) :]
        if body:
            self._skips = False
            self._reader.emit(self._event(body))

    def write_all(self, text: str) -> None:
        """Add text, white space at its end included."""
        self.write(text)
        self.flush()

    def flush(self) -> None:
        """Write the white space that waits."""
        if self._held:
            self._reader.emit(self._event(self._held))
            self._held = ""

    def drop_space(self) -> None:
        """Forget white space that waits, and what follows it."""
        self._held = ""
        self._skips = True


@dataclass(slots=True)
class CallWriter:
    """Numbers the calls of an answer; `new_id` names those that the model gives no id."""

    reader: Reader
    new_id: Callable[[], str]
    n_calls: int = 0

    def start(self, name: str, identifier: str | None = None) -> Callable[[str], None]:
        """Begin a call; returns what takes its arguments."""
        index = self.n_calls
        self.n_calls += 1
        self.reader.emit(ToolCallStart(index, identifier or self.new_id(), name))
        return lambda text: self.reader.emit(ArgumentsDelta(index, text))
