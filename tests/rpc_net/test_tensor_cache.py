"""Weights on disk: found by hash, never believed unchecked, never in the way of a client."""

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.devices.base import BufferUsage, Device, DeviceInfo, DeviceKind
from app.devices.torch_device import TorchDevice
from app.ggml.tensor import Tensor, new_tensor
from app.ggml.types import GGMLType
from app.rpc_backend.client.connect import open_workers
from app.rpc_backend.client.connection import ClientSettings
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.wire.constants import MIN_HASHED_BYTES
from app.rpc_backend.wire.fnv import fnv1a_64
from app.rpc_backend.worker.server import RpcServer, ServerSettings
from app.rpc_backend.worker.tensor_cache import CacheWriter, TensorCache
from app.rpc_backend.worker.tensor_store import FilesAndCache
from tests.helpers.rpc_link import serving
from tests.helpers.weights import weight_of

SIZE = 600_000
DATA = random.Random(2).randbytes(SIZE)
HASH = fnv1a_64(DATA)


@pytest.fixture(scope="module")
def local() -> Device:
    import torch

    return TorchDevice(DeviceInfo("CPU", "test", DeviceKind.CPU), torch.device("cpu"))


@pytest.fixture
def cache(tmp_path: Path) -> TensorCache:
    cache = TensorCache(tmp_path / "rpc" / "deep", min_bytes=1000)
    assert cache.prepare()
    return cache


def stored(cache: TensorCache, data: bytes = DATA) -> Path:
    writer = cache.writer(len(data))
    assert writer is not None
    for at in range(0, len(data), 70_000):
        writer.write(data[at : at + 70_000])
    writer.finish()
    return cache.path(fnv1a_64(data))


def restored(cache: TensorCache, room: int = SIZE) -> bytes | None:
    target = bytearray(room)

    def write(piece: bytes | bytearray | memoryview, at: int) -> None:
        target[at : at + len(piece)] = piece

    return bytes(target) if cache.restore(HASH, room, write) else None


def test_data_is_found_again_under_the_stock_name(cache: TensorCache) -> None:
    path = stored(cache)
    assert path.name == f"{HASH:016x}"
    assert path.read_bytes() == DATA
    assert restored(cache) == DATA
    assert [p.name for p in cache.folder.iterdir()] == [path.name]


def test_unknown_data_is_not_found(cache: TensorCache) -> None:
    assert restored(cache) is None


@pytest.mark.parametrize(
    "damage", [DATA[:-1], DATA[:0], DATA[:-1] + b"!"], ids=["short", "empty", "flip"]
)
def test_damaged_files_are_removed_and_not_used(
    cache: TensorCache, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = stored(cache)
    path.write_bytes(damage)
    assert restored(cache) is None
    assert not path.exists()
    assert f"{HASH:016x}" in caplog.text


def test_data_longer_than_the_tensor_is_not_used(cache: TensorCache) -> None:
    path = stored(cache)
    assert restored(cache, SIZE - 1) is None
    assert path.exists()


def test_an_abandoned_file_leaves_no_trace(cache: TensorCache) -> None:
    writer = cache.writer(SIZE)
    assert writer is not None
    writer.write(DATA[:1000])
    writer.abandon()
    writer.finish()
    assert list(cache.folder.iterdir()) == []


def test_small_data_is_not_worth_a_file(cache: TensorCache) -> None:
    assert cache.writer(999) is None
    assert TensorCache(cache.folder).writer(MIN_HASHED_BYTES - 1) is None


def test_a_folder_that_cannot_be_made_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    cache = TensorCache(tmp_path / "file" / "rpc", min_bytes=1)
    assert not cache.prepare()
    assert cache.writer(10) is None
    assert not cache.restore(1, 10, lambda piece, at: None)
    assert {r.levelno for r in caplog.records} == {logging.WARNING}


def open_one(server: RpcServer) -> RpcDevice:
    settings = ClientSettings(hash_threshold_bytes=1000)
    (device,) = open_workers([f"127.0.0.1:{server.port}"], settings)
    return device


def upload(device: RpcDevice) -> tuple[Tensor, int]:
    """Upload the data as a weight; return its tensor and the bytes that went out for it."""
    tensor = new_tensor(GGMLType.I8, (SIZE,), "w")
    tensor.buffer = device.alloc(SIZE, BufferUsage.WEIGHTS)
    before = device.connection.bytes_sent
    device.set_weights([weight_of(tensor, DATA)])
    return tensor, device.connection.bytes_sent - before


def test_a_second_load_sends_hashes_only(local: Device, cache: TensorCache) -> None:
    with serving([local], ServerSettings(cache=cache)) as server:
        sent = []
        for _ in range(2):
            device = open_one(server)
            tensor, n = upload(device)
            assert device.get_tensor(tensor, 0, SIZE).result(60) == DATA
            sent.append(n)
            device.close()
    assert sent[0] > SIZE
    assert sent[1] < 1000


def test_a_truncated_file_is_replaced_by_the_bytes(local: Device, cache: TensorCache) -> None:
    stored(cache).write_bytes(DATA[: SIZE // 2])
    with serving([local], ServerSettings(cache=cache)) as server:
        device = open_one(server)
        tensor, n = upload(device)
        assert n > SIZE
        assert device.get_tensor(tensor, 0, SIZE).result(60) == DATA
        device.close()
    assert cache.path(HASH).read_bytes() == DATA


def test_only_weights_are_cached(local: Device, cache: TensorCache) -> None:
    with serving([local], ServerSettings(cache=cache)) as server:
        device = open_one(server)
        tensor = new_tensor(GGMLType.I8, (SIZE,), "kv")
        tensor.buffer = device.alloc(SIZE, BufferUsage.COMPUTE)
        device.set_tensor(tensor, DATA)
        device.synchronize()
        device.close()
    assert list(cache.folder.iterdir()) == []


def test_a_worker_without_a_cache_takes_the_bytes(local: Device) -> None:
    with serving([local]) as server:
        device = open_one(server)
        tensor, _ = upload(device)
        assert device.get_tensor(tensor, 0, SIZE).result(60) == DATA
        device.close()


def limited(cache: TensorCache, max_bytes: int) -> TensorCache:
    return TensorCache(cache.folder, cache.min_bytes, max_bytes)


def pieces(n: int) -> list[bytes]:
    return [random.Random(i).randbytes(10_000) for i in range(n)]


def age(path: Path, seconds: int) -> None:
    """Make a file as if it was last used so long ago."""
    used = path.stat().st_mtime - seconds
    os.utime(path, (used, used))


def test_what_was_used_longest_ago_makes_room(cache: TensorCache) -> None:
    small = limited(cache, 35_000)
    paths = []
    for i, data in enumerate(pieces(3)):
        paths.append(stored(small, data))
        age(paths[-1], 100 - i)
    assert small.restore(fnv1a_64(pieces(1)[0]), 10_000, lambda piece, at: None)
    paths.append(stored(small, pieces(4)[3]))
    assert [path.exists() for path in paths] == [True, False, True, True]


def test_the_limit_holds_at_every_moment_between_tensors(cache: TensorCache) -> None:
    small = limited(cache, 35_000)
    for data in pieces(9):
        stored(small, data)
        assert sum(path.stat().st_size for path in small.folder.iterdir()) <= 35_000


def test_data_above_the_limit_is_not_stored(cache: TensorCache) -> None:
    assert limited(cache, SIZE - 1).writer(SIZE) is None


def test_a_smaller_limit_counts_from_the_start_on(cache: TensorCache) -> None:
    for data in pieces(5):
        stored(cache, data)
    assert limited(cache, 20_000).prepare()
    assert len(list(cache.folder.iterdir())) == 2


def test_files_of_others_are_left_alone(cache: TensorCache) -> None:
    foreign = cache.folder / "notes.txt"
    foreign.write_bytes(DATA)
    assert limited(cache, 10).prepare()
    assert foreign.exists()


def test_what_a_killed_worker_left_is_removed_and_what_a_living_one_writes_is_not(
    cache: TensorCache,
) -> None:
    # In containers that share a volume all workers may have the same process id.
    orphan = cache.folder / f".{os.getpid()}-1.part"
    orphan.write_bytes(b"half")
    writer = cache.writer(SIZE)
    assert writer is not None
    writer.write(DATA)
    another = TensorCache(cache.folder, min_bytes=1000)
    assert another.prepare()
    assert not orphan.exists()
    writer.finish()
    assert cache.path(HASH).read_bytes() == DATA


def test_what_another_worker_has_left_half_written_is_in_nobodys_way(cache: TensorCache) -> None:
    for number in range(1, 200):
        (cache.folder / f".{os.getpid()}-{number}.part").touch()
    writer = cache.writer(SIZE)
    assert writer is not None
    writer.abandon()


@pytest.mark.parametrize("n_bytes", [100, 10_000, SIZE])
def test_a_full_disk_is_not_left_with_half_a_file(cache: TensorCache, n_bytes: int) -> None:
    part = cache.folder / ".x.part"
    part.touch()
    writer = CacheWriter(cache, part, Path("/dev/full").open("wb"))  # noqa: SIM115
    writer.write(bytes(100))
    writer.write(bytes(n_bytes))
    writer.finish()
    assert list(cache.folder.iterdir()) == []


def test_files_that_another_worker_removes_meanwhile_do_not_end_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age in range(4):
        path = tmp_path / f"{age:016x}"
        path.write_bytes(bytes(100))
        os.utime(path, (age, age))

    def scandir(folder: Path) -> Iterator["os.DirEntry[str]"]:
        entries = sorted(listed(folder), key=lambda entry: entry.name)
        Path(entries[0].path).unlink()
        return iter(entries)

    with monkeypatch.context() as patch:
        listed = os.scandir
        patch.setattr(os, "scandir", scandir)
        TensorCache(tmp_path, 1, 150).shrink()
    assert [path.name for path in tmp_path.iterdir()] == [f"{3:016x}"]


def test_the_end_of_the_process_leaves_nothing_half_written(cache: TensorCache) -> None:
    whole = stored(cache)
    halves = [cache.writer(SIZE) for _ in range(2)]
    for writer in halves:
        assert writer is not None
        writer.write(DATA[:70_000])
    FilesAndCache(None, cache).close()
    assert list(cache.folder.iterdir()) == [whole]
    for writer in halves:
        assert writer is not None
        writer.abandon()
