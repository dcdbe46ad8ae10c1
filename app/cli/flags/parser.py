"""Reads configuration, environment and command line into the values of a table of options.

The rules are those of llama.cpp's common/arg.cpp: configuration files first, then the environment,
then the command line; `_` in a long flag is `-`; what occurs twice counts the second time, with a
warning, unless it adds up; an unknown flag is an error, but not in a configuration file, which
several programs share. Nothing here knows what any flag is for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from app.cli.flags.option import Option, Repeat, Setting, Status, Value
from app.cli.flags.readers import FALSY, TRUTHY
from app.errors import ConfigError

_SHOWN_VALUE: Final = 80


class UnknownFlagError(ConfigError):
    """A flag that nobody knows."""

    def __init__(self, flag: str) -> None:
        super().__init__(f"invalid argument: {flag}")


@dataclass(frozen=True, slots=True)
class Given:
    """One occurrence of an option; `source` names the flag or the variable."""

    option: Option
    value: Value
    source: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """Everything that was said, in order, and what there is to warn about."""

    given: tuple[Given, ...]
    warnings: tuple[str, ...]
    _values: Mapping[str, Value] = field(default_factory=dict)

    def value(self, dest: str) -> Value:
        """Return what an option is worth: the last of its values, or all of them joined."""
        return self._values[dest]

    def flag(self, dest: str) -> bool:
        """Return a switch."""
        value = self._values[dest]
        assert isinstance(value, bool), dest
        return value

    def integer(self, dest: str) -> int:
        """Return a whole number that has a default."""
        value = self._values[dest]
        assert isinstance(value, int) and not isinstance(value, bool), dest
        return value

    def number(self, dest: str) -> float:
        """Return a number that has a default."""
        value = self._values[dest]
        assert isinstance(value, int | float) and not isinstance(value, bool), dest
        return float(value)

    def maybe_integer(self, dest: str) -> int | None:
        """Return a whole number, or None when it was not said."""
        return None if self._values[dest] is None else self.integer(dest)

    def maybe_number(self, dest: str) -> float | None:
        """Return a number, or None when it was not said."""
        return None if self._values[dest] is None else self.number(dest)

    def text(self, dest: str) -> str:
        """Return a text; an empty one when it was not said."""
        value = self._values[dest]
        assert value is None or isinstance(value, str), dest
        return value or ""

    def texts(self, dest: str) -> tuple[str, ...]:
        """Return texts; none when it was not said."""
        value = self._values[dest]
        assert value is None or isinstance(value, tuple), dest
        return value or ()

    def is_given(self, dest: str) -> bool:
        """Return whether anybody said anything about an option."""
        return any(given.option.dest == dest for given in self.given)


def parse(
    options: Sequence[Option],
    argv: Sequence[str],
    environ: Mapping[str, str],
    settings: Sequence[Setting] = (),
) -> Parsed:
    """Return what settings, environment and arguments (without the program's name) say.

    Raises: UnknownFlagError, ConfigError naming the flag, the value and what was expected.
    """
    by_name = {name: option for option in options for name in (*option.names, *option.off_names)}
    from_arguments = _arguments(by_name, argv)
    from_settings, unknown = _configured(options, settings)
    given = (*from_settings, *_environment(options, environ), *from_arguments)
    for item in given:
        if item.option.status is Status.REFUSED:
            raise ConfigError(f"{item.source} is not supported: {item.option.note}")
    warnings = [*unknown, *_repeated(from_arguments), *_ignored(given)]
    values = {option.dest: option.default for option in options}
    for item in given:
        values[item.option.dest] = _joined(values, item, given)
    return Parsed(given, tuple(warnings), values)


def _environment(options: Sequence[Option], environ: Mapping[str, str]) -> list[Given]:
    found: list[Given] = []
    for option in options:
        if option.env_off and option.env_off in environ:
            found.append(Given(option, False, option.env_off))
        elif option.env and option.env in environ:
            item = _said(option, option.env, environ[option.env])
            # A variable cannot switch off what has no flag for that.
            if item.value is not False or option.off_names:
                found.append(item)
    return found


def _configured(
    options: Sequence[Option], settings: Sequence[Setting]
) -> tuple[list[Given], list[str]]:
    """Return what settings say, and a warning for each that no option answers to."""
    names = {n.lstrip("-"): option for option in options for n in (*option.names, option.env)}
    off = {n.lstrip("-"): option for option in options for n in (*option.off_names, option.env_off)}
    found: list[Given] = []
    unknown: list[str] = []
    for key, value, source in ((s.key, s.value, s.source) for s in settings):
        if key in names:
            found.append(_said(names[key], source, value))
        elif key in off:
            found.append(Given(off[key], not _is_on(source, value), source))
        else:
            unknown.append(f"{source} is ignored: there is no such flag")
    return found, unknown


def _said(option: Option, source: str, word: str) -> Given:
    """What a variable or a setting says; a switch takes a word there."""
    if option.is_switch:
        return Given(option, _is_on(source, word), source)
    return _read(option, source, word)


def _is_on(source: str, word: str) -> bool:
    if word not in (*TRUTHY, *FALSY):
        _bad_value(source, word, "expected on or off")
    return word in TRUTHY


def _arguments(by_name: Mapping[str, Option], argv: Sequence[str]) -> list[Given]:
    found: list[Given] = []
    rest = list(reversed(argv))
    while rest:
        said = rest.pop()
        name = said.replace("_", "-") if said.startswith("--") else said
        option = by_name.get(name)
        if option is None:
            raise UnknownFlagError(said)
        if option.is_switch:
            found.append(Given(option, name not in option.off_names, said))
        elif option.bare is not None and (not rest or rest[-1].startswith("-")):
            found.append(_read(option, said, option.bare))
        elif not rest:
            raise ConfigError(f"{said}: expected a value ({option.metavar})")
        else:
            found.append(_read(option, said, rest.pop()))
    return found


def _read(option: Option, source: str, word: str) -> Given:
    assert option.read is not None
    try:
        return Given(option, option.read(word), source)
    except ValueError as error:
        _bad_value(source, word, str(error))


def _bad_value(source: str, word: str, expected: str) -> NoReturn:
    raise ConfigError(f"{source} {word[:_SHOWN_VALUE]!r}: {expected}")


def _joined(values: Mapping[str, Value], item: Given, given: tuple[Given, ...]) -> Value:
    """The value of an option after one more occurrence."""
    if item.option.repeat is Repeat.LAST:
        return item.value
    first = next(g for g in given if g.option is item.option)
    before = () if item is first else values[item.option.dest]
    more = item.value if isinstance(item.value, tuple) else (str(item.value),)
    assert isinstance(before, tuple)
    return (*before, *more)


def _repeated(given: Sequence[Given]) -> list[str]:
    seen: set[str] = set()
    warnings: list[str] = []
    for item in given:
        if item.option.repeat is Repeat.LAST and item.option.dest in seen and _is_used(item):
            warnings.append(f"{item.source} was given more than once; the last one counts")
        seen.add(item.option.dest)
    return warnings


def _is_used(item: Given) -> bool:
    return item.option.status is Status.HONOURED


def _ignored(given: Sequence[Given]) -> list[str]:
    """One line for each ignored option that asks for something else than the default."""
    last = {item.option.dest: item for item in given}
    return [
        f"{item.source} is ignored: {item.option.note}"
        for item in last.values()
        if item.option.status is Status.IGNORED and item.value != item.option.default
    ]
