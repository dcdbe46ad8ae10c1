"""Something made of files that may be replaced while the program runs: a certificate and its key.

Asked for with each new connection, which costs a look at the files and no more while they are what
they were. Files that cannot be used, as of a renewal that is only half done, are told once, and
what was made of those before them stays. Any thread may ask.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from app.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")

_Seen = tuple[tuple[int, ...], ...]


class Renewed(Generic[T]):
    """What `load` makes of the files as they are now, or were when they could last be used."""

    def __init__(self, files: Sequence[Path], load: Callable[[], T]) -> None:
        """`load` raises ConfigError, which names the files; so does this, the first time."""
        self._files = tuple(files)
        self._load = load
        self._lock = threading.Lock()
        # Looked at before they are read: what changes meanwhile is read again.
        self._seen = self._look()
        self._current = load()

    def current(self) -> T:
        """Return it, made anew if a file has changed."""
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                self._renew()
            return self._current

    def _renew(self) -> None:
        names = ", ".join(map(str, self._files))
        try:
            if not all(path.is_file() for path in self._files):
                raise ConfigError(f"{names}: expected files")
            self._current = self._load()
        except (ConfigError, OSError) as error:
            log.warning("%s; what was read before is still used", error)
        else:
            log.info("%s: changed, and used for new connections", names)

    def _look(self) -> _Seen:
        return tuple(_identity(path) for path in self._files)


def _identity(path: Path) -> tuple[int, ...]:
    """Which file stands there and when it or its rights changed last; empty for none."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
