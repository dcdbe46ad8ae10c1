"""A GGUF model file, mapped into memory: metadata, tensor list, tensor bytes without a copy.

The engine opens one per model; tokenizer and models read `metadata`, the loader uploads `data` and
then calls `release`, so that a main host whose weights all live on workers keeps no copy resident.
The parser is `app.ggml.gguf_parse`. The file must not shrink while it is open: the operating system
ends a process that touches a page which is gone.
"""

import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from app.errors import ModelFormatError
from app.ggml.gguf_cursor import Metadata, MetaValue
from app.ggml.gguf_parse import ParsedGGUF, TensorInfo, parse_gguf
from app.ggml.type_names import describe_types, type_label
from app.ggml.types import MODEL_TYPES

__all__ = [
    "GGUFFile",
    "MetaValue",
    "Metadata",
    "TensorInfo",
    "describe_types",
    "unsupported_types",
]

_DONTNEED: Final[int | None] = getattr(mmap, "MADV_DONTNEED", None)


class GGUFFile:
    """An open model file; a context manager. Reading from several threads is safe."""

    def __init__(
        self, path: Path, status: os.stat_result, mapped: mmap.mmap, parsed: ParsedGGUF
    ) -> None:
        self._map = mapped
        self._view = memoryview(mapped)
        self.path = path
        self.status = status
        self.size = len(mapped)
        self.metadata: Metadata = MappingProxyType(parsed.metadata)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(parsed.tensors)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map and check a model file.

        Raises: ModelFormatError, UnsupportedError.
        """
        where = Path(path)
        mapped, status = _map_file(where)
        try:
            parsed = parse_gguf(mapped, str(where))
        except BaseException:
            mapped.close()
            raise
        result = cls(where, status, mapped, parsed)
        result.release_all()
        return result

    @property
    def architecture(self) -> str:
        """The name under `general.architecture`.

        Raises: ModelFormatError.
        """
        value = self.metadata.get("general.architecture")
        if isinstance(value, str) and value:
            return value
        raise ModelFormatError(
            f"{self.path}: key 'general.architecture' is {value!r:.40}, expected a name"
        )

    def data(self, name: str) -> memoryview:
        """Return the bytes of a tensor, read-only and not copied.

        Raises: KeyError.
        """
        info = self.tensors[name]
        return self._view[info.offset : info.offset + info.nbytes]

    def release(self, name: str, start: int = 0, end: int | None = None) -> None:
        """Let go of the resident pages of a tensor's bytes [start, end); they are read again from
        the file when touched.

        Raises: KeyError.
        """
        info = self.tensors[name]
        self._release(info.offset + start, info.offset + (info.nbytes if end is None else end))

    def release_all(self) -> None:
        """Let go of every resident page."""
        self._release(0, self.size)

    def close(self) -> None:
        """Unmap the file; views that are still held keep it mapped until they are dropped."""
        try:
            self._view.release()
            self._map.close()
        except BufferError:
            return

    def _release(self, start: int, end: int) -> None:
        if _DONTNEED is not None and not self._map.closed:
            start -= start % mmap.PAGESIZE
            self._map.madvise(_DONTNEED, start, end - start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def unsupported_types(gguf: GGUFFile) -> dict[str, list[str]]:
    """Return the tensor types that cannot be used here: ggml's name → the tensors of that type."""
    found: dict[str, list[str]] = {}
    for info in gguf.tensors.values():
        if info.type not in MODEL_TYPES:
            found.setdefault(type_label(info.type), []).append(info.name)
    return found


def _map_file(path: Path) -> tuple[mmap.mmap, os.stat_result]:
    """Map a file; also return what it was when it was mapped."""
    try:
        # Before opening: opening a pipe would wait for its other end.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelFormatError(f"{path}: not a regular file, expected a GGUF model")
        if status.st_size == 0:
            raise ModelFormatError(f"{path}: empty file (0 bytes), expected a GGUF model")
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return mapped, os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelFormatError(f"{path}: cannot be read: {reason}") from error
