"""Reads the text of an answer as it grows: what every parser of this folder is written on.

A parser is a generator. It reads through a `Reader` with `yield from` and sleeps there whenever
the text does not yet tell how to go on; a `Session` feeds text and wakes it. A parser sees the same
text at the same places however the text was cut, so its events differ only in the size of their
deltas. Each character is looked at a bounded number of times.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from app.api.chat_format.events import ChatEvent, merged

T = TypeVar("T")

Parse = Generator[None, None, T]
"""A parser that sleeps at each `yield` until there is more text, or no more will come."""

Sink = Callable[[str], None]
"""Takes text that is not empty."""

SPACE = " \t\r\n"


class Reader:
    """The text that has come and was not read yet, and the events made so far."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._cut = False
        self._events: list[ChatEvent] = []
        self._tape: list[str] | None = None

    def emit(self, event: ChatEvent) -> None:
        """Add an event."""
        self._events.append(event)

    def take_events(self) -> list[ChatEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return merged(events) if len(events) > 1 else events

    def feed(self, text: str) -> None:
        """Add text."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self, *, cut: bool) -> None:
        """Say that no more text will come, and whether the model had more to say."""
        self._ended = True
        self._cut = cut

    @property
    def is_cut_off(self) -> bool:
        """Whether all was read and the model had more to say."""
        return self._cut and self._at == len(self._text)

    def rest(self) -> str:
        """Return what is left, and read it."""
        return self._take(len(self._text))

    def peek(self, n: int) -> Parse[str]:
        """Return the next `n` characters without reading them; fewer at the end of the text."""
        while len(self._text) - self._at < n and not self._ended:
            yield
        return self._text[self._at : self._at + n]

    def read(self, n: int) -> Parse[str]:
        """Return the next `n` characters; fewer at the end of the text."""
        yield from self.peek(n)
        return self._take(self._at + n)

    def skip(self, literal: str) -> Parse[bool]:
        """Read the literal if it comes next."""
        for n in range(1, len(literal) + 1):
            if (yield from self.peek(n)) != literal[:n]:
                return False
        self._take(self._at + len(literal))
        return True

    def space(self) -> Parse[str]:
        """Read and return white space, all that comes next."""
        found: list[str] = []
        while (char := (yield from self.peek(1))) and char in SPACE:
            found.append(self._take(self._at + 1))
        return "".join(found)

    def until(self, marks: Sequence[str], sink: Sink) -> Parse[str]:
        """Hand the text before the first of the marks to `sink`, as soon as it is certain.

        Returns the mark, which is read; "" when the text ended without one. Of marks that begin at
        the same place the one named first wins.
        """
        while True:
            hits = [(at, i) for i, mark in enumerate(marks) if (at := self._find(mark)) >= 0]
            if hits and (self._ended or not self._may_be_beaten(marks, *min(hits))):
                at, which = min(hits)
                self._give(sink, at)
                self._take(at + len(marks[which]))
                return marks[which]
            if self._ended:
                self._give(sink, len(self._text))
                return ""
            if not hits:
                self._give(sink, len(self._text) - self._partial(marks))
            yield

    def put_back(self, text: str) -> None:
        """Undo the reading of text that was read last."""
        self._text = text + self._text[self._at :]
        self._at = 0
        if self._tape is not None:
            self._tape = ["".join(self._tape).removesuffix(text)]

    def start_tape(self) -> None:
        """Keep what is read from here on, in case it must be read as something else."""
        self._tape = []

    def stop_tape(self) -> str:
        """Return what was read since `start_tape`, and keep no more."""
        text, self._tape = "".join(self._tape or ()), None
        return text

    def _find(self, mark: str) -> int:
        return self._text.find(mark, self._at)

    def _may_be_beaten(self, marks: Sequence[str], at: int, which: int) -> bool:
        """Whether another mark may turn out to begin before this one, or here and be preferred."""
        n, longest = len(self._text), max(map(len, marks))
        for start in range(max(self._at, n - longest + 1), at + 1):
            rivals = marks[:which] if start == at else marks
            rest = self._text[start:]
            if any(len(rest) < len(mark) and mark.startswith(rest) for mark in rivals):
                return True
        return False

    def _partial(self, marks: Sequence[str]) -> int:
        """Length of the longest end of the text that begins a mark."""
        unread = self._text[self._at :]
        longest = min(max(map(len, marks), default=1) - 1, len(unread))
        for n in range(longest, 0, -1):
            end = unread[-n:]
            if any(mark.startswith(end) for mark in marks):
                return n
        return 0

    def _give(self, sink: Sink, stop: int) -> None:
        if text := self._take(stop):
            sink(text)

    def _take(self, stop: int) -> str:
        text = self._text[self._at : stop]
        self._at += len(text)
        if self._tape is not None:
            self._tape.append(text)
        return text


class Session:
    """One parser at work on one answer."""

    def __init__(self, parser: Callable[[Reader], Parse[None]]) -> None:
        self._reader = Reader()
        self._parser = parser(self._reader)
        self._finished = False

    def feed(self, text: str) -> list[ChatEvent]:
        """Return what more text tells."""
        self._reader.feed(text)
        return self._wake()

    def finish(self, *, cut: bool = False) -> list[ChatEvent]:
        """Return what is told by there being no more text; `cut` when the model had more to say.

        The beginning of a call that was cut off is no content.
        """
        self._reader.end(cut=cut)
        return self._wake()

    def _wake(self) -> list[ChatEvent]:
        if not self._finished:
            try:
                next(self._parser)
            except StopIteration:
                self._finished = True
        return self._reader.take_events()
