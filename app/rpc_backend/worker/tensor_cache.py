"""Weights on disk under their FNV-1a-64 hash, in the folder and the form of the stock worker.

A file is named by the 16 hex digits of the hash and holds nothing but the bytes. It appears under
its name only when it is complete, and its hash is checked while it is read: a damaged file is
removed and counts as absent. Whatever goes wrong with the disk costs a warning, never a client.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final

from app.rpc_backend.hashing import fnv1a_64
from app.rpc_backend.wire.constants import HASH_THRESHOLD_BYTES
from app.rpc_backend.wire.fnv import OFFSET_BASIS
from app.rpc_backend.wire.layout import Body

log = logging.getLogger(__name__)

_READ_BYTES: Final = 4 * 1024 * 1024
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class TensorCache:
    """One folder; `min_bytes` is the size from which on it is worth storing data."""

    folder: Path
    min_bytes: int = HASH_THRESHOLD_BYTES

    def prepare(self) -> bool:
        """Make the folder; return whether it can be used."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("cache %s: %s; going on without", self.folder, error.strerror)
            return False
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
        part = self.folder / f".{os.getpid()}-{next(_numbers)}.part"
        try:
            return CacheWriter(self, part, part.open("xb"))
        except OSError as error:
            log.warning("cache %s: %s", part, error.strerror)
            return None


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
