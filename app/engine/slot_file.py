"""The file that a slot is saved in: its tokens, then the keys and values of its sequence.

    u32 magic "LSRV" | u32 version | u32 n_words | payload, n_words of 4 bytes
    payload: i32 -1 | u32 1 | u32 n_tokens | i32 tokens...      or, as older servers wrote, tokens
    state:   "LSKV" | u32 version | u32 n_window | 32 bytes model | i32 window positions...
             | rows of every cache tensor | 32 bytes digest

All numbers are little-endian. The frame of the payload is llama.cpp's (server_tokens in
server-common.cpp, b11434), the state is our own, and so is the magic: neither server takes the
other's file for its own. The digest is over tokens and state, so that a token list in either form
goes with it. A file is read twice, first for its digest and for numbers that are none: nothing of a
damaged file ever reaches a device.
"""

import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from app.engine.errors import SlotFileError
from app.engine.kv_rows import HeldPositions
from app.errors import RequestError

MAGIC: Final = b"LSRV"
STATE_MAGIC: Final = b"LSKV"
VERSION: Final = 1
PACKED: Final = -1
DIGEST_BYTES: Final = 32
_FRAME: Final = struct.Struct("<4sII")
_PACKED: Final = struct.Struct("<iII")
_STATE: Final = struct.Struct("<4sII32s")
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class SavedSlot:
    """What a file begins with, checked; rows start at byte `rows_at`."""

    path: Path
    tokens: tuple[int, ...]
    held: HeldPositions
    rows_at: int
    size: int


@dataclass(frozen=True, slots=True)
class Expected:
    """What a file must fit: the model, its vocabulary, the slot, the cache."""

    model: bytes
    n_vocab: int
    n_ctx: int
    row_sizes: Sequence[int]
    """Bytes of one row of each cache tensor."""
    in_window: Sequence[bool]
    is_finite: Callable[[int, bytes], bool]
    """Whether rows of the i-th cache tensor are numbers."""

    def tensor_sizes(self, held: HeldPositions) -> list[int]:
        """Bytes of each cache tensor's rows."""
        return [
            size * len(held.window if windowed else held.full)
            for size, windowed in zip(self.row_sizes, self.in_window, strict=True)
        ]


def save(
    path: Path,
    tokens: Sequence[int],
    held: HeldPositions,
    model: bytes,
    rows: Iterable[bytes],
) -> int:
    """Write a file, replacing one of that name only when it is whole; return its size.

    Raises: SlotFileError when it cannot be written.
    """
    partial = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    packed = np.array(tokens, "<i4").tobytes()
    state = _STATE.pack(STATE_MAGIC, VERSION, len(held.window), model)
    state += held.window.astype("<i4").tobytes()
    digest = hashlib.blake2b(packed + state, digest_size=DIGEST_BYTES)
    try:
        with open(partial, "wb") as file:
            payload = _PACKED.pack(PACKED, VERSION, len(tokens)) + packed
            file.write(_FRAME.pack(MAGIC, VERSION, len(payload) // 4) + payload + state)
            for part in rows:
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
            size = file.tell()
        partial.replace(path)
        return size
    except OSError as error:
        raise SlotFileError(f"Unable to save slot: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def check(path: Path, expected: Expected) -> SavedSlot:
    """Read a file for the first time: everything but the rows, and the digest of all.

    Raises: RequestError saying what is wrong with it.
    """
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        tokens = _tokens(file, expected)
        magic, version, n_window, model = _STATE.unpack(_exactly(file, _STATE.size))
        if magic != STATE_MAGIC or version != VERSION:
            raise _refused("it has no state of a known version")
        if model != expected.model:
            raise _refused("it was saved with another model or another type of cache")
        held = HeldPositions(
            np.arange(len(tokens), dtype=np.int32), _positions(file, n_window, len(tokens))
        )
        rows_at = file.tell()
        sizes = expected.tensor_sizes(held)
        if size != rows_at + sum(sizes) + DIGEST_BYTES:
            raise _refused(f"{size} bytes, expected {rows_at + sum(sizes) + DIGEST_BYTES}")
        digest = hashlib.blake2b(np.array(tokens, "<i4").tobytes(), digest_size=DIGEST_BYTES)
        digest.update(_STATE.pack(magic, version, n_window, model))
        digest.update(held.window.astype("<i4").tobytes())
        for i, part in _parts(file, sizes, expected.row_sizes):
            digest.update(part)
            if not expected.is_finite(i, part):
                raise _refused("its values are no numbers")
        if _exactly(file, DIGEST_BYTES) != digest.digest():
            raise _refused("it is damaged")
    return SavedSlot(path, tokens, held, rows_at, size)


def read_rows(saved: SavedSlot, expected: Expected) -> Iterator[bytes]:
    """Read a checked file again: yield the rows of each cache tensor. Raises: RequestError."""
    with _opened(saved.path) as file:
        file.seek(saved.rows_at)
        for size in expected.tensor_sizes(saved.held):
            yield _exactly(file, size)


def _opened(path: Path) -> BinaryIO:
    try:
        # A pipe of that name would keep whoever opens it waiting.
        if not stat.S_ISREG(path.stat().st_mode):
            raise _refused("it is not a file")
        return path.open("rb")
    except OSError as error:
        raise _refused(str(error.strerror)) from error


def _tokens(file: BinaryIO, expected: Expected) -> tuple[int, ...]:
    magic, version, n_words = _FRAME.unpack(_exactly(file, _FRAME.size))
    if magic != MAGIC or version != VERSION:
        raise _refused("it is not a slot file of this server")
    n_header = _PACKED.size // 4
    if n_words > expected.n_ctx + n_header:
        raise _refused(f"its prompt does not fit into a slot of {expected.n_ctx} tokens")
    words = np.frombuffer(_exactly(file, 4 * n_words), "<i4")
    if n_words >= n_header and words[0] == PACKED:
        if words[1] != VERSION or words[2] != n_words - n_header:
            raise _refused("its list of tokens is damaged")
        words = words[n_header:]
    if len(words) > expected.n_ctx:
        raise _refused(f"its prompt does not fit into a slot of {expected.n_ctx} tokens")
    if not bool(np.all((words >= 0) & (words < expected.n_vocab))):
        raise _refused("it has tokens that the model does not know")
    return tuple(words.tolist())


def _positions(file: BinaryIO, n: int, n_tokens: int) -> npt.NDArray[np.int32]:
    """Positions in the window pool: ascending, the sequence's last ones."""
    if n > n_tokens:
        raise _refused("its window is longer than its prompt")
    positions = np.frombuffer(_exactly(file, 4 * n), "<i4").astype(np.int32)
    if not np.array_equal(positions, np.arange(n_tokens - n, n_tokens)):
        raise _refused("its window is not the end of its prompt")
    return positions


def _parts(
    file: BinaryIO, sizes: Sequence[int], row_sizes: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
    """Whole rows of each tensor, in chunks of bounded size."""
    for i, (size, row) in enumerate(zip(sizes, row_sizes, strict=True)):
        step = max(1, _CHUNK // row) * row
        for start in range(0, size, step):
            yield i, _exactly(file, min(step, size - start))


def _exactly(file: BinaryIO, n: int) -> bytes:
    try:
        data = file.read(n)
    except OSError as error:
        raise _refused(str(error.strerror)) from error
    if len(data) != n:
        raise _refused("it is cut short")
    return data


def _refused(reason: str) -> RequestError:
    return RequestError(f"Unable to restore slot: {reason}", "filename")
