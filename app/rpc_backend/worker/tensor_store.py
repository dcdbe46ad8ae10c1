"""Where a worker looks for weights that a client offers by hash: its own model files, then its
cache.

Whatever is found is hashed while it is read; a client is told "had it" only after length and hash
were right. What lies in an own file is not stored in the cache a second time.
"""

from dataclasses import dataclass
from typing import Protocol

from app.rpc_backend.worker.file_pieces import Write
from app.rpc_backend.worker.own_files import OwnFiles
from app.rpc_backend.worker.tensor_cache import CacheWriter, TensorCache


class TensorStore(Protocol):
    """A place with weights under their FNV-1a-64 hash; any number of threads may use it."""

    def restore(self, hash_: int, size: int, write: Write) -> bool:
        """Hand `size` bytes with this hash to `write`; return False when there are none, or when
        they turned out not to be what they should.
        """

    def writer(self, total: int) -> CacheWriter | None:
        """Return where to put `total` bytes that arrive in pieces, None when they are not kept."""


@dataclass(frozen=True, slots=True)
class FilesAndCache:
    """Both places; either may be absent."""

    files: OwnFiles | None
    cache: TensorCache | None

    def restore(self, hash_: int, size: int, write: Write) -> bool:
        """Look in the files, then in the cache."""
        if self.files is not None and self.files.restore(hash_, size, write):
            return True
        return self.cache is not None and self.cache.restore(hash_, size, write)

    def writer(self, total: int) -> CacheWriter | None:
        """Write to the cache what no file has."""
        if self.cache is None:
            return None
        return self.cache.writer(total, self.files.has if self.files is not None else None)

    def close(self) -> None:
        """Stop looking through files and drop what is half stored."""
        if self.files is not None:
            self.files.close()
        if self.cache is not None:
            self.cache.close()
