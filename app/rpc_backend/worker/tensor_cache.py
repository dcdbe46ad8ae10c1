"""Weights on disk under their FNV-1a-64 hash, in the folder and the form of the stock worker.

A file is named by the 16 hex digits of the hash and holds nothing but the bytes. It appears under
its name only when it is complete, and its hash is checked while it is read: a damaged file is
removed and counts as absent. Above its size limit the folder loses what was used longest ago; the
time of a file is that of its last use. Whatever goes wrong with the disk costs a warning, never a
client.
"""

import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final

from app.rpc_backend.hashing import fnv1a_64
from app.rpc_backend.wire.constants import HASH_THRESHOLD_BYTES
from app.rpc_backend.wire.fnv import OFFSET_BASIS
from app.rpc_backend.wire.layout import Body

log = logging.getLogger(__name__)

DEFAULT_MAX_BYTES: Final = 64 << 30

_READ_BYTES: Final = 4 * 1024 * 1024
_STORED: Final = re.compile("[0-9a-f]{16}")
_PART: Final = re.compile(r"\.(\d+)-\d+\.part")
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class TensorCache:
    """One folder; `min_bytes` is the size from which on it is worth storing data, `max_bytes` what
    all files together may take, None for no limit.
    """

    folder: Path
    min_bytes: int = HASH_THRESHOLD_BYTES
    max_bytes: int | None = DEFAULT_MAX_BYTES

    def prepare(self) -> bool:
        """Make the folder and take out what does not belong there any more; return whether it can
        be used.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_orphans()
        except OSError as error:
            log.warning("cache %s: %s; going on without", self.folder, error.strerror)
            return False
        self.shrink()
        return True

    def path(self, hash_: int) -> Path:
        """Where data of this hash lies."""
        return self.folder / f"{hash_:016x}"

    def restore(self, hash_: int, room: int, write: Callable[[Body, int], None]) -> bool:
        """Hand the data of a hash to `write(piece, at)`; return False when there is none, when it
        is longer than `room`, or when it turned out to be damaged.
        """
        path = self.path(hash_)
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size > room:
                    return False
                found = _hand_over(file, room, write)
            if found == hash_:
                os.utime(path)
                return True
            log.warning("cache %s: the data has hash %016x; removed", path, found)
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("cache %s: %s", path, error.strerror)
        return False

    def writer(self, total: int) -> "CacheWriter | None":
        """Return where to put `total` bytes that arrive in pieces, None when they are not worth it
        or the disk refuses.
        """
        if total < self.min_bytes:
            return None
        if self.max_bytes is not None and total > self.max_bytes:
            log.info("cache %s: %d bytes are above the limit of all", self.folder, total)
            return None
        part = self.folder / f".{os.getpid()}-{next(_numbers)}.part"
        try:
            return CacheWriter(self, part, part.open("xb"))
        except OSError as error:
            log.warning("cache %s: %s", part, error.strerror)
            return None

    def shrink(self) -> None:
        """Remove what was used longest ago until the rest is within the limit."""
        if self.max_bytes is None:
            return
        files = sorted(self._stored(), key=lambda file: file.used_ns)
        excess = sum(file.size for file in files) - self.max_bytes
        for file in files:
            if excess <= 0:
                return
            try:
                file.path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("cache %s: %s", file.path, error.strerror)
                continue
            log.info("cache %s: %d bytes removed for newer data", file.path, file.size)
            excess -= file.size

    def _stored(self) -> "Iterator[_Stored]":
        try:
            for entry in os.scandir(self.folder):
                if _STORED.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    stat = entry.stat(follow_symlinks=False)
                    yield _Stored(Path(entry.path), stat.st_size, stat.st_mtime_ns)
        except OSError as error:
            log.warning("cache %s: %s", self.folder, error.strerror)

    def _remove_orphans(self) -> None:
        """Remove what a worker that was killed had not finished."""
        for path in self.folder.iterdir():
            part = _PART.fullmatch(path.name)
            if part is not None and not _is_alive(int(part[1])):
                path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Stored:
    path: Path
    size: int
    used_ns: int


class CacheWriter:
    """A file in the making; `finish` or `abandon` ends it."""

    def __init__(self, cache: TensorCache, part: Path, file: BinaryIO) -> None:
        self._cache = cache
        self._part = part
        self._file: BinaryIO | None = file
        self._hash = OFFSET_BASIS

    def write(self, piece: Body) -> None:
        """Add the next bytes."""
        if self._file is None:
            return
        try:
            self._file.write(piece)
            self._hash = fnv1a_64(piece, self._hash)
        except OSError as error:
            log.warning("cache %s: %s", self._part, error.strerror)
            self.abandon()

    def finish(self) -> None:
        """Give the file its name."""
        if self._file is None:
            return
        try:
            self._file.close()
            self._part.replace(self._cache.path(self._hash))
            self._file = None
            self._cache.shrink()
        except OSError as error:
            log.warning("cache %s: %s", self._part, error.strerror)
            self.abandon()

    def abandon(self) -> None:
        """Remove what was written, if it has not got its name."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:
            log.debug("cache %s: %s", self._part, error.strerror)
        self._part.unlink(missing_ok=True)


def _hand_over(file: BinaryIO, room: int, write: Callable[[Body, int], None]) -> int:
    """Pass a file on piece by piece and return its hash."""
    at, found = 0, OFFSET_BASIS
    while piece := file.read(min(_READ_BYTES, room - at)):
        found = fnv1a_64(piece, found)
        write(piece, at)
        at += len(piece)
    return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
