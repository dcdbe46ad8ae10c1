"""The parameters that are lists: order of the samplers, sequence breakers, logit bias.

Kinds like those of kinds.py. A name, an item or a type that is not known is refused: nothing of a
list is dropped.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.sampling.kinds import JsonValue, Real, float32, short

SAMPLER_LETTERS: Final[Mapping[str, str]] = {
    "penalties": "e",
    "dry": "d",
    "top_n_sigma": "s",
    "top_k": "k",
    "typ_p": "y",
    "top_p": "p",
    "min_p": "m",
    "xtc": "x",
    "temperature": "t",
    "adaptive_p": "a",
}
"""Every sampler that a request can name, with its letter in the short form."""

_MORE_NAMES: Final[Mapping[str, str]] = {
    "nucleus": "top_p",
    "temp": "temperature",
    "typ": "typ_p",
    "typical": "typ_p",
    "typical_p": "typ_p",
    "typical-p": "typ_p",
}
SAMPLER_NAMES: Final[Mapping[str, str]] = {
    **{name: name for name in SAMPLER_LETTERS},
    **{name.replace("_", "-"): name for name in SAMPLER_LETTERS},
    **{name.replace("_", ""): name for name in SAMPLER_LETTERS},
    **_MORE_NAMES,
}
_BY_LETTER: Final = {letter: name for name, letter in SAMPLER_LETTERS.items()}
_MAX_SAMPLERS: Final = 64
_MAX_BREAKERS: Final = 64


@dataclass(frozen=True, slots=True)
class TokenBias:
    """A constant for the logit of a token, or of each token of a text; -inf forbids it."""

    token: int | str
    bias: float


@dataclass(frozen=True, slots=True)
class Samplers:
    """The order of the samplers: a list of names, or one string of letters or of names and ';'."""

    json_type: str = "array"

    @property
    def expected(self) -> str:
        known = ", ".join(f"{name} ({letter})" for name, letter in SAMPLER_LETTERS.items())
        return f"a list of names, or a string of their letters, of: {known}"

    def read(self, value: object, default: object) -> tuple[str, ...]:
        if isinstance(value, str):
            if all(letter in _BY_LETTER for letter in value):
                return self._bounded([_BY_LETTER[letter] for letter in value])
            value = value.split(";")
        if not isinstance(value, list | tuple):
            raise ValueError
        return self._bounded([self._name(item) for item in value])

    def _name(self, item: object) -> str:
        name = SAMPLER_NAMES.get(item.lower()) if isinstance(item, str) else None
        if name is None:
            raise ValueError(f"{short(item)} is not a sampler")
        return name

    def _bounded(self, names: list[str]) -> tuple[str, ...]:
        if len(names) > _MAX_SAMPLERS:
            raise ValueError(f"{len(names)} samplers are more than {_MAX_SAMPLERS}")
        return tuple(names)

    def to_json(self, value: object) -> JsonValue:
        assert isinstance(value, tuple)
        return list(value)


@dataclass(frozen=True, slots=True)
class Breakers:
    """Strings that end a repetition; an empty one ends none."""

    expected: str = f"a list of 1 to {_MAX_BREAKERS} strings"
    json_type: str = "array"

    def read(self, value: object, default: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= _MAX_BREAKERS:
            raise ValueError
        if not all(isinstance(item, str) for item in value):
            raise ValueError
        return tuple(value)

    def to_json(self, value: object) -> JsonValue:
        assert isinstance(value, tuple)
        return list(value)


@dataclass(frozen=True, slots=True)
class Biases:
    """[[token or text, bias], …] or {token or text: bias}; false as a bias forbids the token."""

    expected: str = (
        "a list of [token id or text, number or false], or an object from token id or text to that"
    )
    json_type: str = "array"

    def read(self, value: object, default: object) -> tuple[TokenBias, ...]:
        if isinstance(value, Mapping):
            return tuple(self._entry(self._key(key), bias) for key, bias in value.items())
        if not isinstance(value, list):
            raise ValueError
        return tuple(self._pair(item) for item in value)

    def _key(self, key: object) -> object:
        return int(key) if isinstance(key, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", key) else key

    def _pair(self, item: object) -> TokenBias:
        if not isinstance(item, list) or len(item) != 2:
            raise ValueError(f"{short(item)} is not a pair")
        return self._entry(item[0], item[1])

    def _entry(self, token: object, bias: object) -> TokenBias:
        if isinstance(token, bool) or not isinstance(token, int | str):
            raise ValueError(f"{short(token)} is neither a token id nor a text")
        if bias is False:
            return TokenBias(token, -math.inf)
        try:
            return TokenBias(token, Real().read(bias, None))
        except ValueError:
            raise ValueError(f"{short(bias)} is not a bias") from None

    def to_json(self, value: object) -> JsonValue:
        assert isinstance(value, tuple)
        return [
            {"bias": None if b.bias == -math.inf else float32(b.bias), "token": b.token}
            for b in value
        ]
