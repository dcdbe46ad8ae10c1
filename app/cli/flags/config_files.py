"""Configuration files that speak for flags: /etc/llama.cpp/config.ini, then the user's own.

Form and meaning are those of llama.cpp (common/arg.cpp, common/preset.cpp): `key = value` lines
whose key is a flag without its dashes or a LLAMA_ARG_ variable; `#` and `;` begin comments; the
section [*] counts first, then [default] and what stands before any section; other sections belong
to other programs. Variables and flags override them.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.cli.flags.option import Setting
from app.errors import ConfigError

_SYSTEM: Final = Path("/etc/llama.cpp/config.ini")
_HEADER: Final = re.compile(r"\[([^]]+)\]")
_PAIR: Final = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*=[ \t]*(.*)", re.ASCII)
_COMMENT: Final = re.compile("[;#]")
_LINE_END: Final = re.compile("\r\n|\n|\r")
_EVERYBODY: Final = "*"
_DEFAULT: Final = "default"
_RESERVED: Final = "version"
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file and what it says, in the order that counts."""

    path: Path
    settings: tuple[Setting, ...]


def config_paths(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return where configuration files may be, the one that counts last at the end."""
    if own := environ.get("XDG_CONFIG_HOME"):
        return _SYSTEM, Path(own) / "llama.cpp" / "config.ini"
    if home := environ.get("HOME"):
        return _SYSTEM, Path(home) / ".config" / "llama.cpp" / "config.ini"
    return (_SYSTEM,)


def read_config_files(paths: Sequence[Path]) -> tuple[ConfigFile, ...]:
    """Return the files that exist.

    Raises: ConfigError naming file and line.
    """
    return tuple(ConfigFile(path, _settings(path)) for path in paths if os.path.lexists(path))


def _settings(path: Path) -> tuple[Setting, ...]:
    sections: dict[str, list[Setting]] = {_EVERYBODY: [], _DEFAULT: []}
    section = _DEFAULT
    for number, line in enumerate(_LINE_END.split(_text(path)), 1):
        said = _COMMENT.split(line, maxsplit=1)[0].strip(" \t")
        if not said:
            continue
        if header := _HEADER.fullmatch(said):
            section = header[1].strip(" \t")
        elif pair := _PAIR.fullmatch(said):
            if pair[1] != _RESERVED and section in sections:
                sections[section].append(Setting(pair[1], pair[2], f"{path}: {pair[1]}"))
        else:
            raise ConfigError(f"{path} line {number}: expected [section] or key = value")
    return (*sections[_EVERYBODY], *sections[_DEFAULT])


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise ConfigError(f"{path}: expected at most {_MAX_BYTES} bytes")
        return raw.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
