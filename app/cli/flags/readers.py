"""How the text after a flag becomes a value; every reader says what it expected."""

import math
from typing import Final

from app.cli.flags.option import Reader, Value

TRUTHY: Final = ("on", "enabled", "true", "1")
FALSY: Final = ("off", "disabled", "false", "0")


def text(value: str) -> Value:
    """Return the text itself."""
    return value


def integer(value: str) -> Value:
    """Return a whole number."""
    try:
        return int(value)
    except ValueError:
        raise ValueError("expected an integer") from None


def number(value: str) -> Value:
    """Return a finite number."""
    try:
        found = float(value)
    except ValueError:
        raise ValueError("expected a number") from None
    if not math.isfinite(found):
        raise ValueError("expected a finite number")
    return found


def within(low: int, high: int | None = None) -> Reader:
    """Return a reader of whole numbers from low to high."""
    limits = f"from {low} up" if high is None else f"from {low} to {high}"

    def read(value: str) -> Value:
        found = integer(value)
        assert isinstance(found, int)
        if found < low or (high is not None and found > high):
            raise ValueError(f"expected an integer {limits}")
        return found

    return read


def one_of(*names: str) -> Reader:
    """Return a reader of one of these words."""

    def read(value: str) -> Value:
        if value not in names:
            raise ValueError(f"expected one of: {', '.join(names)}")
        return value

    return read


def on_off_auto(value: str) -> Value:
    """Return "on", "off" or "auto" for any word that means it."""
    if value in TRUTHY:
        return "on"
    if value in FALSY:
        return "off"
    if value in ("auto", "-1"):
        return "auto"
    raise ValueError("expected on, off or auto")


def on_off(value: str) -> Value:
    """Return "on" or "off" for any word that means it."""
    if (found := on_off_auto(value)) == "auto":
        raise ValueError("expected on or off")
    return found


def words(value: str) -> Value:
    """Return the texts that commas part, without spaces around them; empty ones are left out."""
    return tuple(word for item in value.split(",") if (word := item.strip()))


def gpu_layers(value: str) -> Value:
    """Return a number of layers, or None for auto and all."""
    if value in ("auto", "all"):
        return None
    found = integer(value)
    assert isinstance(found, int)
    return None if found < 0 else found


def shares(value: str) -> Value:
    """Return proportions that commas or slashes part, as texts of checked numbers."""
    items = tuple(item.strip() for item in value.replace("/", ",").split(","))
    for item in items:
        share = number(item or "0")
        assert isinstance(share, float)
        if share < 0:
            raise ValueError("expected proportions of 0 or more")
    return tuple(item or "0" for item in items)


def key_values(value: str) -> Value:
    """Return the KEY=TYPE:VALUE items that commas part; `parse_override` reads one."""
    items = words(value)
    assert isinstance(items, tuple)
    for item in items:
        parse_override(item)
    return items


def parse_override(item: str) -> tuple[str, bool | int | float | str]:
    """Return key and value of KEY=TYPE:VALUE. Raises: ValueError."""
    key, equals, typed = item.partition("=")
    kind, colon, value = typed.partition(":")
    if not key or not equals or not colon:
        raise ValueError(f"expected KEY=TYPE:VALUE, got {item!r}")
    match kind:
        case "int":
            return key, int(value)
        case "float":
            return key, float(value)
        case "bool" if value in ("true", "false"):
            return key, value == "true"
        case "str":
            return key, value
    raise ValueError(f"expected int, float, bool (true or false) or str before ':', got {typed!r}")
