"""Weights on disk under their FNV-1a-64 hash, in the folder and the form of the stock worker.

A file is named by the 16 hex digits of the hash and holds nothing but the bytes. It appears under
its name only when it is complete, and its hash is checked while it is read: a damaged file is
removed and counts as absent. Above its size limit the folder loses what was used longest ago; the
time of a file is that of its last use. What is being written is locked, so that workers with one
folder know it from what a killed one left, also in containers. Whatever goes wrong with the disk
costs a warning, never a client.
"""

import fcntl
import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from app.rpc_backend.hashing import fnv1a_64
from app.rpc_backend.wire.constants import MIN_HASHED_BYTES
from app.rpc_backend.wire.fnv import OFFSET_BASIS
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.worker.file_pieces import Write, hand_over

log = logging.getLogger(__name__)

DEFAULT_MAX_BYTES: Final = 64 << 30

_LOOKS_PER_LIMIT: Final = 64
_STORED: Final = re.compile("[0-9a-f]{16}")
_PART: Final = re.compile(r"\.[0-9a-f-]+\.part")


@dataclass(slots=True)
class _Usage:
    """Bytes that were there when the folder was last looked through, and what came since."""

    counted: int = 0
    added: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class TensorCache:
    """One folder; `min_bytes` is the size from which on it is worth storing data, `max_bytes` what
    all files together may take, None for no limit.
    """

    folder: Path
    min_bytes: int = MIN_HASHED_BYTES
    max_bytes: int | None = DEFAULT_MAX_BYTES
    _usage: _Usage = field(default_factory=_Usage, compare=False, repr=False)
    _parts: set[Path] = field(default_factory=set, compare=False, repr=False)

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

    def restore(self, hash_: int, size: int, write: Write) -> bool:
        """Hand `size` bytes with this hash to `write(piece, at)`; return False when there are none,
        when the file has another length, or when it turned out to be damaged.
        """
        path = self.path(hash_)
        try:
            with path.open("rb", buffering=0) as file:
                stored = os.fstat(file.fileno()).st_size
                found = hand_over(file.fileno(), 0, stored, write if stored == size else None)
            if found.hash != hash_:
                log.warning("cache %s: the data has hash %016x; removed", path, found.hash)
                path.unlink(missing_ok=True)
                return False
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("cache %s: %s", path, error.strerror)
            return False
        self._touch(path)
        return found.n_bytes == size

    def _touch(self, path: Path) -> None:
        try:
            os.utime(path)
        except OSError as error:
            log.debug("cache %s: the time of use was not noted: %s", path, error.strerror)

    def writer(
        self, total: int, is_elsewhere: Callable[[int], bool] | None = None
    ) -> "CacheWriter | None":
        """Return where to put `total` bytes that arrive in pieces, None when they are not worth it
        or the disk refuses. They are dropped in the end if `is_elsewhere(hash)`.
        """
        if total < self.min_bytes:
            return None
        if self.max_bytes is not None and total > self.max_bytes:
            log.info("cache %s: %d bytes are above the limit of all", self.folder, total)
            return None
        part = self.folder / f".{secrets.token_hex(8)}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = part.open("xb")
        except OSError as error:
            log.warning("cache %s: %s", part, error.strerror)
            return None
        _lock(file)
        self._parts.add(part)
        return CacheWriter(self, part, file, is_elsewhere)

    def close(self) -> None:
        """Remove what is half written: the process ends, perhaps around who writes it."""
        for part in self._parts.copy():
            self._drop(part)

    def _drop(self, part: Path) -> None:
        self._parts.discard(part)
        try:
            part.unlink(missing_ok=True)
        except OSError as error:
            log.debug("cache %s: %s", part, error.strerror)

    def shrink(self) -> None:
        """Remove what was used longest ago until the rest is within the limit."""
        if self.max_bytes is None:
            return
        files = sorted(self._stored(), key=lambda file: file.used_ns)
        total = sum(file.size for file in files)
        self._usage.counted, self._usage.added = min(total, self.max_bytes), 0
        excess = total - self.max_bytes
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

    def note_added(self, n_bytes: int) -> None:
        """Count a new file. The folder is looked through when it may be full, and now and then for
        what other workers have put there.
        """
        if self.max_bytes is None:
            return
        usage = self._usage
        with usage.lock:
            usage.added += n_bytes
            is_due = usage.added > self.max_bytes // _LOOKS_PER_LIMIT
            if is_due or usage.counted + usage.added > self.max_bytes:
                self.shrink()

    def _stored(self) -> "Iterator[_Stored]":
        try:
            for entry in os.scandir(self.folder):
                # Another worker may remove files meanwhile.
                with suppress(FileNotFoundError):
                    if _STORED.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        stat = entry.stat(follow_symlinks=False)
                        yield _Stored(Path(entry.path), stat.st_size, stat.st_mtime_ns)
        except OSError as error:
            log.warning("cache %s: %s", self.folder, error.strerror)

    def _remove_orphans(self) -> None:
        """Remove what a worker that was killed had not finished."""
        for path in self.folder.iterdir():
            if not _PART.fullmatch(path.name):
                continue
            try:
                # NFS locks only what is open for writing.
                with path.open("r+b") as file:
                    if _lock(file):
                        path.unlink()
            except OSError as error:
                log.debug("cache %s: not removed: %s", path, error.strerror)


@dataclass(frozen=True, slots=True)
class _Stored:
    path: Path
    size: int
    used_ns: int


class CacheWriter:
    """A file in the making; `finish` or `abandon` ends it."""

    def __init__(
        self,
        cache: TensorCache,
        part: Path,
        file: BinaryIO,
        is_elsewhere: Callable[[int], bool] | None = None,
    ) -> None:
        self._cache = cache
        self._is_elsewhere = is_elsewhere
        self._part = part
        self._file: BinaryIO | None = file
        self._hash = OFFSET_BASIS
        self._n_bytes = 0

    def write(self, piece: Body) -> None:
        """Add the next bytes."""
        if self._file is None:
            return
        try:
            self._file.write(piece)
            self._n_bytes += len(piece)
            self._hash = fnv1a_64(piece, self._hash)
        except OSError as error:
            log.warning("cache %s: %s", self._part, error.strerror)
            self.abandon()

    def finish(self) -> None:
        """Give the file its name."""
        if self._file is None:
            return
        if self._is_elsewhere is not None and self._is_elsewhere(self._hash):
            self.abandon()
            return
        try:
            self._file.flush()
            self._part.replace(self._cache.path(self._hash))
            self._cache._parts.discard(self._part)
            self._file.close()
            self._file = None
            self._cache.note_added(self._n_bytes)
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
            # Closing writes what is left, which a full disk refuses again.
            log.debug("cache %s: %s", self._part, error.strerror)
        self._cache._drop(self._part)


def _lock(file: BinaryIO) -> bool:
    """Return whether nobody else has locked a file; until it is closed this process has then."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
