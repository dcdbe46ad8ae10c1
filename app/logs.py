"""Logging set-up: one line per record on stderr, and in a file where one is named.

Called once by each command line. Verbosity counts as llama.cpp does (0 nothing but output, 1
errors, 2 warnings, 3 information, 4 trace, 5 debug). A line is `HH:MM:SS.mmm L room: message` with
L one of E W I T D. Control characters in messages are escaped, so that no peer or client can forge
a line; only tracebacks take more lines. Other libraries' chatter is kept to warnings.
"""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.errors import ConfigError

TRACE: Final = 15
"""Between INFO and DEBUG: more information, but not per token."""

DEFAULT_VERBOSITY: Final = 3
MAX_VERBOSITY: Final = 5

_SILENT: Final = logging.CRITICAL + 1
_LEVELS: Final = (_SILENT, logging.ERROR, logging.WARNING, logging.INFO, TRACE, logging.DEBUG)
_LETTERS: Final = {
    logging.CRITICAL: "E",
    logging.ERROR: "E",
    logging.WARNING: "W",
    logging.INFO: "I",
    TRACE: "T",
    logging.DEBUG: "D",
}
_OURS: Final = ("app", "uvicorn.error")
_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {9: "\t"}


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What the flags say; `file` None means stderr only."""

    verbosity: int = DEFAULT_VERBOSITY
    file: Path | None = None
    disabled: bool = False


class LineFormatter(logging.Formatter):
    """Formats a record as one line, followed by the traceback if there is one."""

    def __init__(self) -> None:
        super().__init__(datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return time, level, room and the escaped message."""
        time = f"{self.formatTime(record, self.datefmt)}.{int(record.msecs):03d}"
        letter = _LETTERS.get(record.levelno, "I")
        room = record.name.removeprefix("app.")
        return f"{time} {letter} {room}: {record.getMessage().translate(_ESCAPES)}"


def level_of(verbosity: int) -> int:
    """Return the logging level for a llama.cpp verbosity; beyond both ends the nearest one."""
    return _LEVELS[min(max(verbosity, 0), MAX_VERBOSITY)]


def setup_logging(settings: LogSettings) -> None:
    """Replace every handler of the process by those that the settings ask for.

    Raises: ConfigError when the log file cannot be opened.
    """
    level = _SILENT if settings.disabled else level_of(settings.verbosity)
    logging.basicConfig(handlers=_handlers(settings), level=max(level, logging.WARNING), force=True)
    for name in _OURS:
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(True)


def _handlers(settings: LogSettings) -> list[logging.Handler]:
    if settings.disabled:
        return [logging.NullHandler()]
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if settings.file is not None:
        try:
            handlers.append(logging.FileHandler(settings.file, encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"--log-file {settings.file}: {error.strerror}") from error
    for handler in handlers:
        handler.setFormatter(LineFormatter())
    return handlers
