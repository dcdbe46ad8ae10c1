"""A place in a GBNF source: blanks, names, numbers, characters with their escapes, and errors that
name line and column.

Which characters count where follows llama.cpp's src/llama-grammar.cpp.
"""

import string
from types import MappingProxyType
from typing import Final

from app.errors import RequestError
from app.sampling.grammar.limits import gbnf_refusal
from app.sampling.grammar.tree import MAX_CODE_POINT

_NAME_CHARS: Final = frozenset(string.ascii_letters + string.digits + "-")
_HEX_DIGITS: Final = frozenset(string.hexdigits)
_MAX_DIGITS: Final = 9
_ESCAPES: Final = MappingProxyType(
    {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
)
_HEX_ESCAPES: Final = MappingProxyType({"x": 2, "u": 4, "U": 8})


class Cursor:
    """Reads a source from left to right."""

    __slots__ = ("at", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0

    def error(self, cause: str, at: int | None = None) -> RequestError:
        """Return an error at a place, by default the present one."""
        place = self.at if at is None else at
        line = self.source.count("\n", 0, place) + 1
        column = place - self.source.rfind("\n", 0, place)
        return gbnf_refusal(f"line {line}, column {column}: {cause}")

    def peek(self) -> str:
        """Return the next character, "" at the end."""
        return self.source[self.at : self.at + 1]

    def shown(self) -> str:
        """Return the next character as messages show it."""
        return repr(self.peek()) if self.peek() else "the end"

    def take(self, text: str) -> bool:
        """Step over `text` if it comes next."""
        if not self.source.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def expect(self, text: str) -> None:
        """Step over `text`. Raises: RequestError when something else comes."""
        if not self.take(text):
            raise self.error(f"expected {text!r}, got {self.shown()}")

    def skip_blanks(self, *, newlines: bool) -> None:
        """Step over white space and comments."""
        blanks = " \t\r\n" if newlines else " \t"
        while char := self.peek():
            if char == "#":
                while self.peek() not in ("", "\r", "\n"):
                    self.at += 1
            elif char in blanks:
                self.at += 1
            else:
                return

    def at_name(self) -> bool:
        """Return whether a name comes next."""
        return self.peek() in _NAME_CHARS

    def name(self) -> str:
        """Read a rule's name. Raises: RequestError when none comes."""
        start = self.at
        while self.peek() in _NAME_CHARS:
            self.at += 1
        if self.at == start:
            raise self.error(f"expected the name of a rule, got {self.shown()}")
        return self.source[start : self.at]

    def at_number(self) -> bool:
        """Return whether a number comes next."""
        return self.peek() != "" and self.peek() in string.digits

    def number(self) -> int:
        """Read a number. Raises: RequestError when none comes, or one of too many digits."""
        start = self.at
        while self.at_number():
            self.at += 1
        if not 0 < self.at - start <= _MAX_DIGITS:
            raise self.error(f"expected a number of 1 to {_MAX_DIGITS} digits", start)
        return int(self.source[start : self.at])

    def char(self) -> int:
        """Read a character or an escape and return its code point.

        Raises: RequestError for an unknown escape, a code point that is none, or the end.
        """
        start = self.at
        char = self.peek()
        self.at += 1
        if char == "":
            raise self.error("the text ends inside a literal or a character class", start)
        if char != "\\":
            return self._checked(ord(char), start)
        kind = self.peek()
        self.at += 1
        if kind in _HEX_ESCAPES:
            return self._checked(self._hex(_HEX_ESCAPES[kind], start), start)
        if kind not in _ESCAPES:
            raise self.error(f"unknown escape {char + kind!r}", start)
        return ord(_ESCAPES[kind])

    def _hex(self, n_digits: int, start: int) -> int:
        digits = self.source[self.at : self.at + n_digits]
        if len(digits) != n_digits or not _HEX_DIGITS.issuperset(digits):
            raise self.error(f"expected {n_digits} hexadecimal digits", start)
        self.at += n_digits
        return int(digits, 16)

    def _checked(self, code_point: int, start: int) -> int:
        if code_point > MAX_CODE_POINT:
            raise self.error(f"code point {code_point:X} is beyond U+10FFFF", start)
        return code_point
