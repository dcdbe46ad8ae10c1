"""Escapes in the texts of flags, as llama.cpp's --escape reads them."""

from typing import Final

_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")


def unescaped(text: str) -> str:
    r"""Return a text with \n, \r, \t, \', \", \\ and \xHH replaced by what they stand for."""
    out: list[str] = []
    rest = iter(range(len(text)))
    for i in rest:
        following = text[i + 1 : i + 2]
        if text[i] != "\\" or not following:
            out.append(text[i])
        elif following in _ESCAPES:
            out.append(_ESCAPES[following])
            next(rest)
        elif following == "x" and _is_hex(text[i + 2 : i + 4]):
            out.append(chr(int(text[i + 2 : i + 4], 16)))
            for _ in range(3):
                next(rest)
        else:
            out.append(text[i])
    return "".join(out)


def _is_hex(digits: str) -> bool:
    return len(digits) == 2 and set(digits) <= _HEX
