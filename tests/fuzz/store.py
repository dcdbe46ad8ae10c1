"""Weights offered by hash to a worker with a cache and with model files of its own, which are cut,
changed and taken away between the offers.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGUFWriter

from app.rpc_backend.hashing import fnv1a_64
from app.rpc_backend.weight_hashes import HashStore
from app.rpc_backend.wire import messages as m
from app.rpc_backend.worker.file_pieces import Write
from app.rpc_backend.worker.own_files import OwnFiles
from app.rpc_backend.worker.tensor_cache import CacheWriter, TensorCache
from app.rpc_backend.worker.tensor_store import FilesAndCache
from tests.fuzz.caller import Caller
from tests.fuzz.census import Census
from tests.fuzz.dice import Dice

MIN_BYTES: Final = 64
MAX_BYTES: Final = 1 << 20
_SIZES: Final = (63, 64, 1000, 4096, 300_000)
_MOST_KNOWN: Final = 20
OFFER: Final = "offer"


class FuzzStore:
    """A `TensorStore` that counts, and what has been put into it or lies in its files."""

    def __init__(self, folder: Path, census: Census) -> None:
        self.known: dict[int, bytes] = {}
        self._cache = TensorCache(folder / "cache", MIN_BYTES, MAX_BYTES)
        assert self._cache.prepare()
        self._model = folder / "own.gguf"
        self._in_model = _write_model(self._model)
        self._pristine = self._model.read_bytes()
        self._files = OwnFiles([folder], HashStore(folder / "hashes"), MIN_BYTES, 0.0)
        self._files.look()
        self._files.wait()
        self._census = census
        self._store = FilesAndCache(self._files, self._cache)
        self.places = [self._cache.folder, self._model]
        census.expect(OFFER, ("of an own file", "of the cache"))

    def restore(self, hash_: int, size: int, write: Write) -> bool:
        """Count how it went, by where the data should be."""
        found = self._store.restore(hash_, size, write)
        where = "of an own file" if hash_ in self._in_model else "of the cache"
        self._census.add(OFFER, where, ok=found)
        return found

    def writer(self, total: int) -> CacheWriter | None:
        """Write to the cache."""
        return self._store.writer(total)

    def close(self) -> None:
        """Stop looking through files."""
        self._store.close()

    def offered(self, dice: Dice) -> tuple[int, bytes]:
        """Return a hash and the data that it belongs to."""
        all_known = [*self._in_model.items(), *self.known.items()]
        return dice.choice(all_known)

    def remember(self, data: bytes) -> None:
        """Note what the worker was asked to keep."""
        if len(self.known) >= _MOST_KNOWN:
            del self.known[next(iter(self.known))]
        self.known[fnv1a_64(data)] = data

    def damage(self, dice: Dice) -> int | None:
        """Do something to one file, or put the model back as it was; return whose hash it has."""
        paths = [path for path in self._cache.folder.iterdir() if path.suffix == ""]
        mine = [path for path in paths if int(path.name, 16) in self.known]
        path = dice.choice([*(mine or paths), self._model])
        with suppress(OSError):
            if path == self._model and dice.chance(0.6):
                path.write_bytes(self._pristine)
                return None
            old = path.read_bytes()
            ways = (old[: dice.randrange(len(old) + 1)], dice.damaged(old), old + b"\0", b"")
            if dice.chance(0.2):
                path.unlink()
            else:
                path.write_bytes(dice.choice(ways))
        return int(path.name, 16) if path.parent == self._cache.folder else None


def offer(dice: Dice, link: Caller, store: FuzzStore) -> None:
    """Have data kept and offer it by its hash; "had it" must mean that it lies in the tensor now.

    Raises: SessionError, HasEndedError.
    """
    for _ in range(dice.randint(1, 6)):
        _offer_once(dice, link, store)


def _offer_once(dice: Dice, link: Caller, store: FuzzStore) -> None:
    damaged = store.damage(dice) if dice.chance(0.3) else None
    if damaged is None and dice.chance(0.4):
        data = dice.randbytes(dice.choice(_SIZES))
        room = link.take(len(data))
        link.call(m.SetTensor(room.whole, 1, 0), data)
        store.remember(data)
        return
    hash_, data = store.offered(dice)
    if damaged in store.known:
        hash_, data = damaged, store.known[damaged]
    size = len(data) if dice.chance(0.8) else max(len(data) + dice.choice((-1, 1)), 1)
    room = link.take(size + 64)
    before = link.read(room)
    reply = link.call(
        m.SetTensorHash(room.part(size), 0, hash_ if dice.chance(0.9) else dice.u64())
    )
    after = link.read(room)
    assert after[size:] == before[size:], "bytes beside the tensor were written"
    if reply == m.FlagReply(1):
        assert fnv1a_64(after[:size]) == hash_, "the worker had something else"


def _write_model(path: Path) -> dict[int, bytes]:
    rng = np.random.default_rng(0)
    writer = GGUFWriter(str(path), "llama")
    made = {}
    for number, count in enumerate((16, 1000, 90_000)):
        values = rng.standard_normal(count).astype(np.float32)
        writer.add_tensor(f"t{number}", values)
        made[fnv1a_64(values.tobytes())] = values.tobytes()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


@contextmanager
def open_store(census: Census) -> Iterator[FuzzStore]:
    """Make one in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        store = FuzzStore(Path(folder), census)
        yield store
        store.close()
