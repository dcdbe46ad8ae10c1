"""How a number or switch is read from JSON: its type, its range and its way back to JSON.

`params.py` gives every parameter a kind; the HTTP room, the command line and the documentation use
the kinds through it. `read` raises ValueError, whose text may say more than `expected` does; the
caller names the parameter.
"""

import reprlib
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

INT32_MAX: Final = 2**31 - 1
F32_MAX: Final = float(np.finfo(np.float32).max)

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


class Kind(Protocol):
    """Type and range of a parameter."""

    @property
    def expected(self) -> str:
        """What a good value is, in words."""

    @property
    def json_type(self) -> str:
        """Name of the JSON type."""

    def read(self, value: object, default: object) -> object:
        """Return the value to keep. Raises: ValueError."""

    def to_json(self, value: object) -> JsonValue:
        """Return the value as the HTTP API shows it."""


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    return value


def float32(value: float) -> float:
    """Return the nearest float32, which is what the sampler uses and llama.cpp shows."""
    return float(np.float32(value))


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer; out of range it is clamped or refused."""

    low: int = 0
    high: int = INT32_MAX
    clamp: bool = False
    accepts_bool: bool = False
    json_type: str = "integer"

    @property
    def expected(self) -> str:
        return "an integer" if self.clamp else f"an integer from {self.low} to {self.high}"

    def read(self, value: object, default: object) -> int:
        number = int(value) if self.accepts_bool and isinstance(value, bool) else _number(value)
        if isinstance(number, float) and not number.is_integer():
            raise ValueError
        number = int(number)
        if self.clamp:
            return min(max(number, self.low), self.high)
        if not self.low <= number <= self.high:
            raise ValueError
        return number

    def to_json(self, value: object) -> JsonValue:
        assert isinstance(value, int)
        return value


@dataclass(frozen=True, slots=True)
class Seed:
    """An unsigned 32-bit number; others count modulo 2**32, so that -1 is the random seed."""

    expected: str = "an integer; -1 for a random seed"
    json_type: str = "integer"

    def read(self, value: object, default: object) -> int:
        return Integer(-(2**63), 2**64 - 1).read(value, default) % 2**32

    def to_json(self, value: object) -> JsonValue:
        assert isinstance(value, int)
        return value


@dataclass(frozen=True, slots=True)
class Real:
    """A float32; out of range it is clamped or refused, or replaced by the default if too low."""

    low: float = -F32_MAX
    high: float = F32_MAX
    clamp: bool = False
    positive: bool = False
    low_means_default: bool = False
    json_type: str = "number"

    @property
    def expected(self) -> str:
        if self.positive:
            return "a finite number above 0"
        if self.clamp or self.low_means_default or self.high == F32_MAX:
            return "a finite number"
        return f"a number from {self.low:g} to {self.high:g}"

    def read(self, value: object, default: object) -> float:
        number = _number(value)
        if not -F32_MAX <= number <= F32_MAX:  # also NaN
            raise ValueError
        number = float(number)
        if self.low_means_default and number < self.low:
            assert isinstance(default, float)
            return default
        if self.clamp:
            return min(max(number, self.low), self.high)
        if not self.low <= number <= self.high:
            raise ValueError
        if self.positive and not (float32(number) > 0 and 1 / float32(number) <= F32_MAX):
            raise ValueError
        return number

    def to_json(self, value: object) -> JsonValue:
        assert isinstance(value, int | float)
        return float32(value)


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false."""

    expected: str = "true or false"
    json_type: str = "boolean"

    def read(self, value: object, default: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def to_json(self, value: object) -> JsonValue:
        return bool(value)


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 48
_SHORT.maxlevel = 2


def short(value: object) -> str:
    """Return a value as text of bounded length, for an error message."""
    return _SHORT.repr(value)
