"""A worker's own model files: found by hash, read once, never believed unchecked."""

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

from app.devices.base import BufferUsage
from app.devices.null import NullDevice
from app.ggml.gguf_file import GGUFFile
from app.ggml.tensor import new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.weight_hashes import HashStore
from app.rpc_backend.wire.fnv import fnv1a_64
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.worker import file_pieces, own_files
from app.rpc_backend.worker.own_files import OwnFiles
from app.rpc_backend.worker.server import ServerSettings
from app.rpc_backend.worker.tensor_cache import TensorCache
from app.rpc_backend.worker.tensor_store import FilesAndCache
from tests.helpers.rpc_link import serving
from tests.helpers.weights import Arrivals, weight_of

SIZE = 100_000


def data_of(seed: int, size: int = SIZE) -> bytes:
    return random.Random(seed).randbytes(size)


def write_model(path: Path, *seeds: int) -> Path:
    """Write a model file with one tensor of random bytes for each seed, and a small one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(path), "llama")
    for seed in seeds:
        writer.add_tensor(f"w{seed}", np.frombuffer(data_of(seed), np.int8))
    writer.add_tensor("small", np.zeros(10, np.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def opened(*places: Path, hashes: Path | None = None) -> OwnFiles:
    """Look through the places and return what was found; what is new is looked for at once."""
    files = OwnFiles(places, HashStore(hashes), look_again_s=0)
    files.look()
    files.wait()
    return files


def restored(files: OwnFiles, seed: int, size: int = SIZE) -> bytes | None:
    target = bytearray(size)

    def write(piece: bytes | bytearray | memoryview, at: int) -> None:
        target[at : at + len(piece)] = piece

    return bytes(target) if files.restore(fnv1a_64(data_of(seed)), size, write) else None


def test_tensors_of_files_and_of_folders_are_found(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "deep" / "a.gguf", 1, 2)
    other = write_model(tmp_path / "other.gguf", 3)
    files = opened(tmp_path / "models", other)
    for seed in (1, 2, 3):
        assert restored(files, seed) == data_of(seed)
        assert files.has(fnv1a_64(data_of(seed)))
    assert restored(files, 4) is None
    assert not files.has(fnv1a_64(bytes(10))), "too small to be worth it"


def test_data_of_another_length_is_not_handed_over(tmp_path: Path) -> None:
    files = opened(write_model(tmp_path / "a.gguf", 1))
    assert restored(files, 1, SIZE + 1) is None
    assert restored(files, 1) == data_of(1)


def test_a_pipe_in_the_place_of_a_model_is_not_waited_for(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a.gguf", 1)
    files = opened(path)
    path.unlink()
    os.mkfifo(path)
    assert restored(files, 1) is None


def test_a_second_start_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(tmp_path / "a.gguf", 1, 2)
    opened(path, hashes=tmp_path / "hashes")

    def refuse(*_: object) -> None:
        raise AssertionError("the file was read again")

    monkeypatch.setattr(GGUFFile, "open", refuse)
    files = opened(path, hashes=tmp_path / "hashes")
    monkeypatch.undo()
    assert restored(files, 2) == data_of(2)


def test_a_new_file_is_found_after_something_was_asked_in_vain(tmp_path: Path) -> None:
    files = opened(tmp_path)
    write_model(tmp_path / "a.gguf", 1)
    assert restored(files, 1) is None
    files.wait()
    assert restored(files, 1) == data_of(1)


def test_what_is_asked_in_vain_all_the_time_looks_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Sequence[Path]] = []

    def note(places: Sequence[Path]) -> Iterator[Path]:
        looks.append(places)
        return iter(())

    monkeypatch.setattr(own_files, "_model_files", note)
    files = OwnFiles([tmp_path], HashStore(None))
    for _ in range(100):
        assert restored(files, 1) is None
        files.wait()
    assert len(looks) == 1


def test_a_removed_file_is_forgotten_and_its_twin_takes_its_place(tmp_path: Path) -> None:
    first, _ = write_model(tmp_path / "a.gguf", 1), write_model(tmp_path / "b.gguf", 1)
    files = opened(tmp_path)
    first.unlink()
    restored(files, 1)
    files.wait()
    assert restored(files, 1) == data_of(1)


def same_time(path: Path, data: bytes) -> None:
    """Write over a file as if nothing had happened."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("damage", ["flip", "short", "empty"])
def test_a_file_that_changed_behind_its_back_is_noticed(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_model(tmp_path / "a.gguf", 1, 2)
    files = opened(path, hashes=tmp_path / "hashes")
    raw = bytearray(path.read_bytes())
    at = raw.find(data_of(1))
    raw[at] ^= 1
    same_time(path, {"flip": bytes(raw), "short": bytes(raw[: at + 5]), "empty": b""}[damage])
    assert restored(files, 1) is None
    assert "no longer used" in caplog.text
    files.wait()
    assert restored(files, 1) is None
    files.wait()
    assert restored(files, 2) == (data_of(2) if damage == "flip" else None)


def test_what_is_no_model_is_left_alone(tmp_path: Path) -> None:
    write_model(tmp_path / "good.gguf", 1)
    half = write_model(tmp_path / "half.gguf", 2, 3)
    half.write_bytes(half.read_bytes()[:-SIZE])
    (tmp_path / "noise.gguf").write_bytes(os.urandom(5000))
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "lost.gguf").symlink_to(tmp_path / "nowhere")
    files = opened(tmp_path, tmp_path / "absent")
    assert restored(files, 1) == data_of(1)


def test_stopping_does_not_wait_for_the_rest(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a.gguf", *range(20))
    files = OwnFiles([path], HashStore(None), look_again_s=0)
    files.close()
    files.look()
    files.wait()
    assert restored(files, 1) is None


def test_stopping_waits_for_a_piece_and_not_for_a_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OwnFiles([write_model(tmp_path / "a.gguf", 1)], HashStore(None), look_again_s=0)
    pieces = []

    def stopped(piece: Body, state: int) -> int:
        pieces.append(len(piece))
        files._stopping = True
        return fnv1a_64(piece, state)

    monkeypatch.setattr(file_pieces, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(file_pieces, "fnv1a_64", stopped)
    files.look()
    files.wait()
    assert pieces == [1000]


@pytest.fixture
def store(tmp_path: Path) -> FilesAndCache:
    files = opened(write_model(tmp_path / "models" / "a.gguf", 1))
    cache = TensorCache(tmp_path / "cache", min_bytes=1000)
    assert cache.prepare()
    return FilesAndCache(files, cache)


def test_a_client_sends_only_what_no_file_has(store: FilesAndCache) -> None:
    assert store.cache is not None
    with serving([NullDevice()], ServerSettings(cache=store)) as server:
        (device,) = open_workers([f"127.0.0.1:{server.port}"])
        arrivals = {seed: Arrivals() for seed in (1, 2)}
        weights = []
        for seed in (1, 2):
            tensor = new_tensor(GGMLType.I8, (SIZE,), f"w{seed}")
            tensor.buffer = device.alloc(SIZE, BufferUsage.WEIGHTS)
            weights.append(weight_of(tensor, data_of(seed), arrivals[seed]))
        device.set_weights(weights)
        device.close()
    assert arrivals[1].told == [(0, SIZE, True)]
    assert arrivals[2].n_had == 0
    assert [path.name for path in store.cache.folder.iterdir()] == [f"{fnv1a_64(data_of(2)):016x}"]


def test_what_an_own_file_has_is_not_stored_again(store: FilesAndCache) -> None:
    assert store.cache is not None
    for seed in (1, 2):
        writer = store.writer(SIZE)
        assert writer is not None
        writer.write(data_of(seed))
        writer.finish()
    assert [path.name for path in store.cache.folder.iterdir()] == [f"{fnv1a_64(data_of(2)):016x}"]


def test_without_either_place_nothing_is_found_or_kept() -> None:
    store = FilesAndCache(None, None)
    assert not store.restore(1, 10, lambda piece, at: None)
    assert store.writer(SIZE) is None
