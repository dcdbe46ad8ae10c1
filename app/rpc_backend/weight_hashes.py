"""Hashes of a model file's tensors, computed once and kept in a small file beside the cache.

The client asks `WeightHashes` for what it offers to workers; a worker with model files of its own
finds them by it. A kept list counts for the same file only: real path, size, time of change and
inode. It is written atomically and carries a hash of itself; whatever is wrong with it, the tensors
are hashed again. Among too many lists, those not used for longest are removed.
"""

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from app.ggml.gguf_parse import TensorInfo
from app.rpc_backend.hashing import fnv1a_64

log = logging.getLogger(__name__)

_FORM: Final = 1
_MAX_LIST_BYTES: Final = 64 << 20
_MAX_LISTS: Final = 1000
_SUFFIX: Final = ".hashes"
_END_OF_HASHES: Final = 1 << 64
_NOT_OURS: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class HashedTensor:
    """A tensor's FNV-1a-64 hash and where its bytes lie."""

    hash: int
    offset: int
    n_bytes: int
    type: int


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Which file a list is about."""

    path: str
    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path, status: os.stat_result) -> "FileIdentity":
        """Identify a file that had this status when it was opened."""
        return cls(os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ino)

    def is_current(self) -> bool:
        """Whether the file is still the same."""
        try:
            return FileIdentity.of(Path(self.path), os.stat(self.path)) == self
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class HashList:
    """What is known of a file; `is_complete` when every tensor worth it was hashed."""

    tensors: Mapping[str, HashedTensor] = field(default_factory=dict)
    is_complete: bool = False


@dataclass(frozen=True, slots=True)
class HashStore:
    """The folder of the lists; without one, nothing is kept."""

    folder: Path | None

    def load(self, file: FileIdentity) -> HashList:
        """Return what is kept of a file, an empty list when that is nothing or cannot be used."""
        path = self._path(file)
        if path is None:
            return HashList()
        try:
            if path.stat().st_size > _MAX_LIST_BYTES:
                return HashList()
            found = _read(path.read_bytes(), file)
            os.utime(path)
        except FileNotFoundError:
            return HashList()
        except OSError as error:
            log.debug("%s: %s", path, error.strerror)
            return HashList()
        except _NOT_OURS as error:
            log.info("%s: cannot be used and is made again: %s", path, error)
            return HashList()
        return found

    def save(self, file: FileIdentity, known: HashList) -> None:
        """Keep a list, if the file is still what it was."""
        path = self._path(file)
        if path is None or not file.is_current():
            return
        part = path.with_name(f".{os.getpid()}-{next(_numbers)}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(_written(file, known))
            part.replace(path)
            self._shrink()
        except OSError as error:
            log.warning("hashes of %s cannot be kept: %s", file.path, error)
            _remove(part)

    def forget(self, file: FileIdentity) -> None:
        """Remove what is kept of a file."""
        if (path := self._path(file)) is not None:
            _remove(path)

    def _path(self, file: FileIdentity) -> Path | None:
        if self.folder is None:
            return None
        return self.folder / f"{fnv1a_64(os.fsencode(file.path)):016x}{_SUFFIX}"

    def _shrink(self) -> None:
        assert self.folder is not None
        paths = [path for path in self.folder.iterdir() if path.suffix == _SUFFIX]
        if len(paths) > _MAX_LISTS:
            paths.sort(key=lambda path: path.stat().st_mtime_ns)
            for path in paths[:-_MAX_LISTS]:
                _remove(path)


class WeightHashes:
    """Hashes of one open model file. Any thread may ask; each tensor is hashed once."""

    def __init__(self, file: FileIdentity, store: HashStore) -> None:
        self._file = file
        self._store = store
        self._known = store.load(file)
        self._computed: dict[str, Future[HashedTensor]] = {}
        self._lock = threading.Lock()

    def hash_of(self, info: TensorInfo, read_hash: Callable[[], int]) -> int:
        """Return the hash of a tensor; `read_hash` computes it where it is not known."""
        kept = self._known.tensors.get(info.name)
        if kept is not None and _is_about(kept, info):
            return kept.hash
        with self._lock:
            pending = self._computed.get(info.name)
            is_mine = pending is None
            if pending is None:
                pending = self._computed[info.name] = Future()
        if is_mine:
            try:
                row = HashedTensor(read_hash(), info.offset, info.nbytes, int(info.type))
            except BaseException as error:
                with self._lock:
                    del self._computed[info.name]
                pending.set_exception(error)
                raise
            pending.set_result(row)
        return pending.result().hash

    def save(self, *, is_complete: bool = False) -> None:
        """Keep what was computed since the file was opened."""
        with self._lock:
            computed = {n: f.result() for n, f in self._computed.items() if f.done()}
        if not computed and (self._known.is_complete or not is_complete):
            return
        before = self._store.load(self._file)
        tensors = {**before.tensors, **self._known.tensors, **computed}
        complete = is_complete or before.is_complete or self._known.is_complete
        self._store.save(self._file, HashList(tensors, complete))


def _is_about(row: HashedTensor, info: TensorInfo) -> bool:
    return (row.offset, row.n_bytes, row.type) == (info.offset, info.nbytes, int(info.type))


def _written(file: FileIdentity, known: HashList) -> bytes:
    rows = {
        name: [f"{row.hash:016x}", row.offset, row.n_bytes, row.type]
        for name, row in known.tensors.items()
    }
    document = {
        "form": _FORM,
        "file": [file.path, file.size, file.mtime_ns, file.inode],
        "complete": known.is_complete,
        "tensors": rows,
    }
    # A file name may hold bytes that are no UTF-8.
    text = json.dumps(document).encode("ascii")
    return b"%016x\n" % fnv1a_64(text) + text


def _read(raw: bytes, file: FileIdentity) -> HashList:
    """Read a list; one about another file is empty.

    Raises: what `_NOT_OURS` lists for anything that was not written here.
    """
    head, _, text = raw.partition(b"\n")
    if int(head, 16) != fnv1a_64(text):
        raise ValueError("it is damaged")
    document = json.loads(text)
    if document["form"] != _FORM or FileIdentity(*document["file"]) != file:
        return HashList()
    rows = {
        str(name): HashedTensor(_hash(row[0]), int(row[1]), int(row[2]), int(row[3]))
        for name, row in document["tensors"].items()
    }
    return HashList(rows, bool(document["complete"]))


def _hash(text: str) -> int:
    value = int(text, 16)
    if not 0 <= value < _END_OF_HASHES:
        raise ValueError(f"hash {text}")
    return value


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.debug("%s: %s", path, error.strerror)
