"""All flags together, and how --help shows them."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from app.cli.flags.accepted import IGNORED, REFUSED
from app.cli.flags.conversations import CHAT
from app.cli.flags.embeddings import EMBEDDINGS
from app.cli.flags.environment import ENVIRONMENT
from app.cli.flags.keeping import KEEPING
from app.cli.flags.model import DEVICES, MODEL, ROPE, SIZES
from app.cli.flags.option import Group, Option
from app.cli.flags.requests import REQUESTS, sampling_group
from app.cli.flags.securing import SECURING
from app.cli.flags.server import PROGRAM, SERVER


def _section(title: str, *groups: Group) -> tuple[Group, ...]:
    """Groups under one of the headings of llama-server's --help."""
    return tuple(Group(f"{title}: {group.title}", group.options) for group in groups)


GROUPS: Final[tuple[Group, ...]] = (
    *_section("common params", PROGRAM, MODEL, DEVICES, SECURING, SIZES, ROPE),
    *_section("sampling params", sampling_group(), REQUESTS),
    *_section("server params", SERVER, KEEPING, CHAT, EMBEDDINGS),
    ENVIRONMENT,
    IGNORED,
    REFUSED,
)
OPTIONS: Final[tuple[Option, ...]] = tuple(o for group in GROUPS for o in group.options)

_HELP_COLUMN: Final = 40
_WIDTH: Final = 100


def usage() -> str:
    """Return the text of --help; flags without effect are only listed by name."""
    return help_text("llama-serve", GROUPS, (IGNORED, REFUSED))


def help_text(program: str, groups: Sequence[Group], only_named: Sequence[Group]) -> str:
    """Return what --help of a program prints; the flags of some groups are only listed by name."""
    lines = [f"usage: {program} [options]", ""]
    for group in groups:
        lines += [f"----- {group.title} -----", ""]
        if group in only_named:
            names = ", ".join(name for o in group.options for name in (*o.names, *o.off_names))
            lines += textwrap.wrap(names, _WIDTH, break_on_hyphens=False)
        else:
            lines += (line for option in group.options for line in _lines(option))
        lines.append("")
    return "\n".join(lines)


def _lines(option: Option) -> Iterator[str]:
    names = ", ".join((*option.names, *option.off_names))
    head = f"{names} {option.metavar}".rstrip() if names else f"{option.env}={option.metavar}"
    body = textwrap.wrap(_explained(option), _WIDTH - _HELP_COLUMN, break_on_hyphens=False)
    if len(head) >= _HELP_COLUMN:
        yield head
        head = ""
    yield head.ljust(_HELP_COLUMN) + body[0]
    for line in body[1:]:
        yield " " * _HELP_COLUMN + line


def _explained(option: Option) -> str:
    """The help text with default and variable."""
    default = option.default
    if isinstance(default, tuple):
        default = ",".join(default)
    shown = "" if default in (None, False, "") else f" (default: {_word(default)})"
    return option.help + shown + (f" (env: {option.env})" if option.env and option.names else "")


def _word(default: object) -> str:
    return "on" if default is True else str(default)
