"""Model files that the worker has itself, as a source of weights that clients offer by hash.

A thread looks through the places at the start, and again when something was asked for that is not
known and the last look is a while ago. Hashes come from `HashStore`, so that only new files are
read. What is handed over is hashed on the way: a file that was replaced or damaged meanwhile is
noticed, forgotten and looked at again.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from app.errors import LlamaServeError
from app.ggml.gguf_file import GGUFFile, TensorInfo
from app.rpc_backend.weight_hashes import FileIdentity, HashStore, WeightHashes
from app.rpc_backend.wire.constants import MIN_HASHED_BYTES
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.worker.file_pieces import Write, hand_over

log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 30.0
_MAX_FILES: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Place:
    file: FileIdentity
    offset: int
    n_bytes: int


class _StoppedError(Exception):
    """The worker ends while files are looked through."""


class OwnFiles:
    """Any thread may ask; the look through the files is a thread of its own."""

    def __init__(
        self,
        places: Sequence[Path],
        store: HashStore,
        min_bytes: int = MIN_HASHED_BYTES,
        look_again_s: float = _LOOK_AGAIN_S,
    ) -> None:
        """`places` are files and folders, which are looked through with all that is in them."""
        self._places = tuple(places)
        self._store = store
        self._min_bytes = min_bytes
        self._look_again_s = look_again_s
        self._by_hash: dict[int, _Place] = {}
        self._files: frozenset[FileIdentity] = frozenset()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._looked_at = -look_again_s
        self._stopping = False

    def look(self) -> None:
        """Begin to look for new files, unless that is going on or was done a moment ago."""
        with self._lock:
            is_running = self._thread is not None and self._thread.is_alive()
            is_recent = time.monotonic() - self._looked_at < self._look_again_s
            if is_running or is_recent or self._stopping:
                return
            self._thread = threading.Thread(target=self._look, name="own-files", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Return when the look that is going on has ended."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Stop looking."""
        with self._lock:
            self._stopping = True
        self.wait()

    def has(self, hash_: int) -> bool:
        """Whether a file has data of this hash, as far as is known."""
        return hash_ in self._by_hash

    def restore(self, hash_: int, size: int, write: Write) -> bool:
        """Hand `size` bytes of this hash to `write`; return False when there are none, or when the
        file is no longer what it was.
        """
        place = self._by_hash.get(hash_)
        if place is None:
            self.look()
            return False
        if place.n_bytes != size:
            return False
        try:
            with open(place.file.path, "rb", buffering=0, opener=_without_waiting) as file:
                found = hand_over(file.fileno(), place.offset, size, write)
        except OSError as error:
            log.warning("%s: %s; no longer used", place.file.path, error.strerror)
            self._forget(place.file)
            return False
        if (found.hash, found.n_bytes) == (hash_, size):
            return True
        log.warning("%s: is not what it was; no longer used as it is known", place.file.path)
        self._store.forget(place.file)
        self._forget(place.file)
        return False

    def _forget(self, file: FileIdentity) -> None:
        with self._lock:
            self._files = frozenset()
            self._by_hash = {h: p for h, p in self._by_hash.items() if p.file != file}
            self._looked_at = -self._look_again_s
        self.look()

    def _look(self) -> None:
        try:
            paths = self._paths()
            if paths.keys() != self._files:
                self._take(paths)
        except _StoppedError:
            log.debug("stopped looking through model files")
        finally:
            self._looked_at = time.monotonic()

    def _paths(self) -> dict[FileIdentity, Path]:
        found = {}
        for path in islice(_model_files(self._places), _MAX_FILES):
            try:
                found[FileIdentity.of(path, path.stat())] = path
            except OSError as error:
                log.warning("%s: %s", path, error.strerror)
        return found

    def _take(self, paths: dict[FileIdentity, Path]) -> None:
        """Replace what is known by what these files have; until then both are known."""
        fresh: dict[int, _Place] = {}
        for file, path in paths.items():
            try:
                for hash_, place in self._tensors(file, path):
                    fresh.setdefault(hash_, place)
                    with self._lock:
                        self._by_hash.setdefault(hash_, place)
            except LlamaServeError as error:
                log.info("%s is not used: %s", path, error)
            except OSError as error:
                log.warning("%s: %s", path, error.strerror)
        with self._lock:
            self._by_hash, self._files = fresh, frozenset(paths)
        log.info("%d model files with %d tensors are at hand", len(paths), len(fresh))

    def _tensors(self, file: FileIdentity, path: Path) -> Iterator[tuple[int, _Place]]:
        """Hashes and places of a file's tensors, from the kept list or from the file.

        Raises: LlamaServeError, OSError.
        """
        kept = self._store.load(file)
        if kept.is_complete:
            for row in kept.tensors.values():
                yield row.hash, _Place(file, row.offset, row.n_bytes)
            return
        with GGUFFile.open(path) as gguf, path.open("rb", buffering=0) as opened:
            identity = FileIdentity.of(path, gguf.status)
            hashes = WeightHashes(identity, self._store)
            try:
                for info in gguf.tensors.values():
                    if info.nbytes >= self._min_bytes:
                        hash_ = hashes.hash_of(info, partial(self._hash, opened.fileno(), info))
                        yield hash_, _Place(identity, info.offset, info.nbytes)
            except _StoppedError:
                hashes.save()
                raise
            hashes.save(is_complete=True)

    def _hash(self, descriptor: int, info: TensorInfo) -> int:
        return hand_over(descriptor, info.offset, info.nbytes, self._go_on).hash

    def _go_on(self, piece: Body, at: int) -> None:
        if self._stopping:
            raise _StoppedError


def _without_waiting(path: str, flags: int) -> int:
    # What was a model may be a pipe by now, and opening one waits for its other end.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _model_files(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        if not place.is_dir():
            yield place
            continue
        for folder, _, names in os.walk(place, onerror=_tell):
            for name in sorted(names):
                if name.endswith(".gguf"):
                    yield Path(folder) / name


def _tell(error: OSError) -> None:
    log.warning("%s: %s", error.filename, error.strerror)
