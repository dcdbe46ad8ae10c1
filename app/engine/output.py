"""From tokens to the text that a client sees: whole characters, and never part of a stop string.

`TextAssembler` takes the bytes of each token and says what may be shown. Text that could still
become a stop string is held back; so are the tokens of a character that is not complete. The rules,
down to the indentation and time limits, follow `process_token` of llama.cpp's server
(server-context.cpp, b11434), but a stop string is found wherever the tokens cut it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.tokenizer.stream_decoder import StreamDecoder


@dataclass(frozen=True, slots=True)
class Shown:
    """Text that can be shown after a token; `stopped_by` is the stop string that ended the text."""

    text: str
    is_whole: bool
    stopped_by: str | None = None


class TextAssembler:
    """Collects the text of one generation."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(s for s in stop if s)
        self._decoder = StreamDecoder()
        self._held = ""

    def add(self, piece: bytes) -> Shown:
        """Add a token's bytes; `is_whole` is false while a character is incomplete."""
        text = self._decoder.push(piece)
        self._held += text
        found = self._find()
        if found is not None:
            at, word = found
            shown, self._held = self._held[:at], ""
            return Shown(shown, True, word)
        keep = self._partial()
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return Shown(shown, not self._decoder.held_back)

    def finish(self) -> str:
        """Return what was held back; a character that never became whole shows as U+FFFD."""
        rest, self._held = self._held + self._decoder.flush(), ""
        return rest

    def _find(self) -> tuple[int, str] | None:
        """The first stop string in the held text."""
        hits = [(self._held.find(word), word) for word in self._stop]
        hits = [hit for hit in hits if hit[0] >= 0]
        return min(hits, key=lambda hit: hit[0]) if hits else None

    def _partial(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = 0
        for word in self._stop:
            for n in range(min(len(word) - 1, len(self._held)), longest, -1):
                if self._held.endswith(word[:n]):
                    longest = n
                    break
        return longest


class LineLimits:
    """The two limits that only bite at a new line: indentation and time."""

    def __init__(self, n_indent: int, t_max_predict_ms: int) -> None:
        self._n_indent = n_indent
        self._t_max_predict_ms = t_max_predict_ms
        self._line: str | None = None
        self.has_new_line = False

    def add(self, text: str, elapsed_ms: float) -> bool:
        """Take shown text; return whether a limit ends the generation."""
        over = self._add_indent(text)
        if "\n" in text:
            self.has_new_line = True
            over |= 0 < self._t_max_predict_ms < elapsed_ms
        return over

    def _add_indent(self, text: str) -> bool:
        """Whether a line after the first starts with too little white space."""
        if self._n_indent <= 0:
            return False
        for i, part in enumerate(text.split("\n")):
            if i:
                self._line = part
            elif self._line is not None:
                self._line += part
            if self._line is None:
                continue
            body = self._line.lstrip(" \t")
            if body and len(self._line) - len(body) < self._n_indent:
                return True
        return False
