"""How the values of llama-serve-bench's flags are read: most take comma lists of alternatives.

A reader returns checked texts, so that a flag that comes twice adds its values up; `integers` turns
them into numbers. Ranges are llama-bench's: first-last, first-last+step and first-last*factor.
"""

import math
import re
from collections.abc import Sequence
from typing import Final

from app.cli.flags.option import Reader, Value
from app.cli.flags.readers import on_off_auto

MAX_VALUES: Final = 1000
"""More values of one flag than anybody waits for."""

_MAX_INT: Final = 2**31 - 1
_RANGE: Final = re.compile(r"(-?\d{1,10})(?:-(\d{1,10})(?:([+*])(\d{1,10}))?)?", re.ASCII)


def integers(texts: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers that a reader has checked."""
    return tuple(int(text) for text in texts)


def ranges(low: int = 0) -> Reader:
    """Return a reader of numbers and ranges, none of them below `low`."""

    def read(value: str) -> Value:
        found = [number for item in value.split(",") for number in _range(item.strip())]
        if min(found) < low or max(found) > _MAX_INT:
            raise ValueError(f"expected integers from {low} to {_MAX_INT}")
        if len(found) > MAX_VALUES:
            raise ValueError(f"expected at most {MAX_VALUES} values")
        return tuple(map(str, found))

    return read


def _range(item: str) -> list[int]:
    match = _RANGE.fullmatch(item)
    if match is None:
        raise ValueError("expected n, first-last, first-last+step or first-last*factor")
    number = int(match[1])
    last = number if match[2] is None else int(match[2])
    step = 1 if match[4] is None else int(match[4])
    found: list[int] = []
    while number <= last and len(found) <= MAX_VALUES:
        found.append(number)
        following = number * step if match[3] == "*" else number + step
        if following <= number:
            raise ValueError(f"{item} would never end")
        number = following
    if not found:
        raise ValueError(f"{item} is empty: expected first to be at most last")
    return found


def alternatives(*allowed: str) -> Reader:
    """Return a reader of comma-separated words, each of them among `allowed` if any are given."""

    def read(value: str) -> Value:
        found = tuple(item.strip() for item in value.split(","))
        for item in found:
            if not item:
                raise ValueError("expected values between the commas")
            if allowed and item not in allowed:
                raise ValueError(f"{item}: expected {', '.join(allowed)}")
        return found

    return read


def only(value: str, reason: str) -> Reader:
    """Return a reader that refuses everything but `value`."""

    def read(text: str) -> Value:
        if any(item.strip() != value for item in text.split(",")):
            raise ValueError(f"expected {value}: {reason}")
        return value

    return read


def prompt_and_generation(value: str) -> Value:
    """Return one pair `pp,tg` as its text."""
    match = re.fullmatch(r"(\d{1,9}),(\d{1,9})", value, re.ASCII)
    if match is None:
        raise ValueError("expected two numbers pp,tg")
    return (f"{int(match[1])},{int(match[2])}",)


def flash_attention(value: str) -> Value:
    """Return on, off or auto for each alternative, whatever word means it."""
    return tuple(str(on_off_auto(item.strip())) for item in value.split(","))


def tensor_splits(value: str) -> Value:
    """Return proportions that slashes part, for each alternative."""
    found = tuple(item.strip() for item in value.split(","))
    for item in found:
        for share in item.split("/"):
            if not _is_share(share):
                raise ValueError("expected proportions of 0 or more such as 3/1")
    return found


def _is_share(text: str) -> bool:
    try:
        share = float(text)
    except ValueError:
        return False
    return math.isfinite(share) and share >= 0
