"""What is known about one flag: the row of which parser, --help and README are made."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

Value = bool | int | float | str | tuple[str, ...] | None
"""What a flag may be worth; None is "not said"."""

Reader = Callable[[str], Value]
"""Turns the text after a flag into a value; raises ValueError saying what was expected."""

ENV_PREFIX: Final = "LLAMA_ARG_"


class Repeat(Enum):
    """What a second occurrence of a flag means."""

    LAST = "the last one counts, with a warning"
    APPEND = "all of them count"


class Status(Enum):
    """What becomes of a flag."""

    HONOURED = "it does what it says"
    IGNORED = "accepted with a warning: results are the same without it"
    REFUSED = "refused: ignoring it would change results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One flag, or a variable without one. Without `read` it is a switch: `names` switch it on,
    `off_names` off.

    `bare` is the value when the text after the flag is missing, for flags that used to take none.
    `note` says why it is ignored or refused, or what an old spelling became.
    """

    dest: str
    names: tuple[str, ...]
    help: str
    read: Reader | None = None
    metavar: str = ""
    off_names: tuple[str, ...] = ()
    env: str = ""
    default: Value = None
    repeat: Repeat = Repeat.LAST
    status: Status = Status.HONOURED
    note: str = ""
    bare: str | None = None

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no text."""
        return self.read is None

    @property
    def env_off(self) -> str:
        """The variable that switches it off whatever its value, or an empty text."""
        if not self.off_names or not self.env.startswith(ENV_PREFIX):
            return ""
        return f"{ENV_PREFIX}NO_{self.env.removeprefix(ENV_PREFIX)}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value from a configuration file: `key` is a flag without its dashes, or a variable."""

    key: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Group:
    """Flags that --help shows together."""

    title: str
    options: tuple[Option, ...]
