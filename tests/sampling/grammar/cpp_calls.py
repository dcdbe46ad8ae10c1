"""The test calls of llama.cpp's C++ test files as Python values.

Only what those files use is read: calls whose arguments are string literals (plain, raw, joined by
standing side by side or by +), lists of them in braces, names, and `token(n)`.
"""

import re
from collections.abc import Iterator

CppValue = bytes | list["CppValue"]

_LEXEME = re.compile(
    rb"""//[^\n]*|/\*.*?\*/|\s+"""
    rb"""|R"(?P<mark>[^(\s]*)\((?P<raw>.*?)\)(?P=mark)\""""
    rb"""|"(?P<text>(?:[^"\\\n]|\\.)*)\""""
    rb"""|(?P<word>[A-Za-z_]\w*)|(?P<number>\d+)|(?P<sign>.)""",
    re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0"}


class _Reader:
    def __init__(self, source: bytes) -> None:
        self._lexemes = [
            (match.lastgroup, self._value(match))
            for match in _LEXEME.finditer(source)
            if match.lastgroup is not None
        ]
        self._at = 0

    @staticmethod
    def _value(match: re.Match[bytes]) -> bytes:
        if match.lastgroup == "text":
            return _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]), match["text"])
        assert match.lastgroup is not None
        return match["raw"] if match.lastgroup == "raw" else match[match.lastgroup]

    def calls(self, name: bytes) -> Iterator[list[CppValue]]:
        while self._at + 1 < len(self._lexemes):
            is_call = self._lexemes[self._at : self._at + 2] == [("word", name), ("sign", b"(")]
            self._at += 1
            # Definitions have a type here, calls a literal or a list.
            if is_call and self._lexemes[self._at + 1][0] != "word":
                self._at += 1
                yield self._list(b")")

    def _peek(self) -> tuple[str | None, bytes]:
        return self._lexemes[self._at]

    def _list(self, end: bytes) -> list[CppValue]:
        values: list[CppValue] = []
        while self._peek() != ("sign", end):
            if self._peek() == ("sign", b","):
                self._at += 1
            elif self._peek() == ("sign", b"{"):
                self._at += 1
                values.append(self._list(b"}"))
            else:
                values.append(self._text())
        self._at += 1
        return values

    def _text(self) -> bytes:
        joined = b""
        while True:
            kind, value = self._peek()
            if kind in ("raw", "text"):
                joined += value
                self._at += 1
            elif (kind, value) == ("word", b"token"):
                joined += b"<[%s]>" % self._lexemes[self._at + 2][1]
                self._at += 4
            elif kind == "word":
                joined += value
                self._at += 1
            elif (kind, value) == ("sign", b"+"):
                self._at += 1
            else:
                assert (kind, value) in (("sign", b","), ("sign", b"}"), ("sign", b")")), value
                return joined


def calls(source: bytes, name: str) -> list[list[CppValue]]:
    """Return the arguments of each call of a function."""
    return list(_Reader(source).calls(name.encode()))
