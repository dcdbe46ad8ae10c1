"""How the command line writes a sampling parameter: texts → the value that JSON would have.

A flag turns all its occurrences into one JSON-like value; params_from_request then checks it as it
checks a request, so that both doors have the same rules. What cannot be parsed is passed on as
text, which is refused there by name.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.sampling.kinds import JsonValue

Texts = Sequence[str]


def switch(texts: Texts) -> JsonValue:
    """Return True: the flag is there."""
    return True


def last_number(texts: Texts) -> JsonValue:
    """Return the last text as an integer or a float."""
    for convert in (int, float):
        try:
            return convert(texts[-1])
        except ValueError:
            continue
    return texts[-1]


def last_text(texts: Texts) -> JsonValue:
    """Return the last text."""
    return texts[-1]


def last_names(texts: Texts) -> JsonValue:
    """Return the names in the last text, which ';' parts."""
    return [*texts[-1].split(";")]


def breakers(texts: Texts) -> JsonValue:
    """Return the texts after the last "none"; if there are none, the one that breaks nothing."""
    after = max((i + 1 for i, text in enumerate(texts) if text == "none"), default=0)
    return [*texts[after:]] or [""]


def biases(texts: Texts) -> JsonValue:
    """Return a pair of token and bias for each text such as 15043+1 or 15043-inf."""
    return [_bias(text) for text in texts]


def _bias(text: str) -> JsonValue:
    parts = re.fullmatch(r"\s*([0-9]{1,10})([+-].+)", text)
    if not parts:
        return text
    bias = last_number(parts.groups()[1:])
    return [int(parts[1]), False if bias == float("-inf") else bias]


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of the command line: its spellings, and how its texts become a value.

    Without a `metavar` it is a switch that takes no text. `env` is the variable that stands for it.
    """

    names: tuple[str, ...]
    metavar: str | None = None
    value: Callable[[Texts], JsonValue] = switch
    env: str | None = None
