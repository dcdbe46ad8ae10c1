"""Hashes of a model file are computed once, believed for that file only, and never when damaged."""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.ggml.gguf_parse import TensorInfo
from app.ggml.types import GGMLType
from app.rpc_backend import weight_hashes
from app.rpc_backend.hashing import fnv1a_64
from app.rpc_backend.weight_hashes import FileIdentity, HashStore, WeightHashes

INFOS = [
    TensorInfo(f"w{i}", GGMLType.F16, (64, i + 1, 1, 1), 1000 * i, 128 * (i + 1)) for i in range(4)
]


class Counting:
    """Gives each tensor a hash and counts how often it is asked for one."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def of(self, info: TensorInfo) -> Callable[[], int]:
        """What computes the hash of a tensor."""

        def compute() -> int:
            self.asked.append(info.name)
            return hash_of(info)

        return compute


def hash_of(info: TensorInfo) -> int:
    return 0xF000_0000_0000_0000 + info.offset


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * 5000)
    return path


@pytest.fixture
def store(tmp_path: Path) -> HashStore:
    return HashStore(tmp_path / "cache" / "hashes")


def identity(path: Path) -> FileIdentity:
    return FileIdentity.of(path, path.stat())


def run(path: Path, store: HashStore, infos: list[TensorInfo] = INFOS) -> list[str]:
    """Ask for all hashes as a load does, check them, and return the names that were computed."""
    hashes, counting = WeightHashes(identity(path), store), Counting()
    for info in infos:
        assert hashes.hash_of(info, counting.of(info)) == hash_of(info)
    hashes.save()
    return counting.asked


def kept_list(store: HashStore) -> Path:
    assert store.folder is not None
    (path,) = store.folder.iterdir()
    return path


def test_a_second_load_computes_nothing(model: Path, store: HashStore) -> None:
    assert run(model, store) == ["w0", "w1", "w2", "w3"]
    assert run(model, store) == []


def test_what_was_not_asked_for_yet_is_added(model: Path, store: HashStore) -> None:
    assert run(model, store, INFOS[:2]) == ["w0", "w1"]
    assert run(model, store, INFOS[1:]) == ["w2", "w3"]
    assert run(model, store) == []


def test_a_link_is_the_file_it_leads_to(model: Path, store: HashStore) -> None:
    run(model, store)
    link = model.with_name("link.gguf")
    link.symlink_to(model)
    assert run(link, store) == []


def change_size(path: Path) -> None:
    path.write_bytes(b"x" * 5001)


def change_time(path: Path) -> None:
    path.write_bytes(b"y" * 5000)
    os.utime(path, ns=(1, 1))


def replace_file(path: Path) -> None:
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(b"y" * 5000)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [change_size, change_time, replace_file])
def test_another_file_under_the_same_name_is_hashed_again(
    model: Path, store: HashStore, change: Callable[[Path], None]
) -> None:
    run(model, store)
    change(model)
    assert len(run(model, store)) == 4
    assert run(model, store) == []


def test_a_tensor_that_lies_elsewhere_is_hashed_again(model: Path, store: HashStore) -> None:
    run(model, store)
    moved = [replace(INFOS[0], offset=7), replace(INFOS[1], nbytes=9), INFOS[2]]
    assert run(model, store, moved) == ["w0", "w1"]


def with_row(raw: bytes, row: list[object]) -> bytes:
    """A list whose first tensor has another row, and whose own hash is right."""
    document = json.loads(raw.partition(b"\n")[2])
    document["tensors"]["w0"] = row
    text = json.dumps(document).encode()
    return b"%016x\n" % fnv1a_64(text) + text


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[:-1],
        lambda raw: raw[:200] + bytes([raw[200] ^ 1]) + raw[201:],
        lambda raw: b"not hex\n{}",
        lambda raw: b"%016x\n[]" % fnv1a_64(b"[]"),
        lambda raw: b"%016x\n{}" % fnv1a_64(b"{}"),
        lambda raw: b"\xff" * 1000,
        lambda raw: with_row(raw, ["00"]),
        lambda raw: with_row(raw, ["00", 1e999, 1, 1]),
        lambda raw: with_row(raw, ["f" * 17, INFOS[0].offset, INFOS[0].nbytes, 0]),
        lambda raw: with_row(raw, ["-1", INFOS[0].offset, INFOS[0].nbytes, 0]),
    ],
    ids=[
        "empty",
        "short",
        "flip",
        "no hash",
        "list",
        "no fields",
        "noise",
        "short row",
        "infinite",
        "long hash",
        "negative hash",
    ],
)
def test_a_damaged_list_is_made_again(
    model: Path, store: HashStore, damage: Callable[[bytes], bytes]
) -> None:
    run(model, store)
    path = kept_list(store)
    path.write_bytes(damage(path.read_bytes()))
    assert len(run(model, store)) == 4
    assert run(model, store) == []


def test_a_list_of_absurd_size_is_not_read(
    model: Path, store: HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(model, store)
    monkeypatch.setattr(weight_hashes, "_MAX_LIST_BYTES", 100)
    assert len(run(model, store)) == 4


def test_a_file_that_changes_while_it_is_hashed_is_not_kept(model: Path, store: HashStore) -> None:
    hashes = WeightHashes(identity(model), store)
    hashes.hash_of(INFOS[0], lambda: 1)
    change_size(model)
    hashes.save()
    assert store.folder is not None
    assert not store.folder.exists()


def test_too_many_lists_lose_those_used_longest_ago(
    tmp_path: Path, store: HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_hashes, "_MAX_LISTS", 2)
    models = [tmp_path / f"{i}.gguf" for i in range(3)]
    for age, path in enumerate(models[:2]):
        path.write_bytes(b"x")
        run(path, store)
        assert store.folder is not None
        for kept in store.folder.iterdir():
            os.utime(kept, ns=(age, age))
    assert run(models[0], store) == []
    models[2].write_bytes(b"x")
    run(models[2], store)
    assert run(models[0], store) == []
    assert len(run(models[1], store)) == 4


def test_a_folder_that_cannot_be_written_is_a_warning(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert len(run(model, HashStore(tmp_path / "file" / "hashes"))) == 4
    assert "cannot be kept" in caplog.text


def test_without_a_folder_nothing_is_kept(model: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert len(run(model, HashStore(None))) == 4
    assert sorted(tmp_path.rglob("*")) == before


def test_two_threads_that_want_the_same_tensor_compute_it_once(
    model: Path, store: HashStore
) -> None:
    hashes, begun, may_end = WeightHashes(identity(model), store), threading.Event(), []
    results: list[int] = []

    def slow() -> int:
        begun.set()
        may_end.append(True)
        return 5

    def never() -> int:
        raise AssertionError("computed a second time")

    first = threading.Thread(target=lambda: results.append(hashes.hash_of(INFOS[0], slow)))
    first.start()
    assert begun.wait(60)
    results.append(hashes.hash_of(INFOS[0], never))
    first.join()
    assert results == [5, 5]


def test_a_hash_that_fails_is_computed_by_the_next_who_asks(model: Path, store: HashStore) -> None:
    def fail() -> int:
        raise OSError("gone")

    hashes = WeightHashes(identity(model), store)
    with pytest.raises(OSError, match="gone"):
        hashes.hash_of(INFOS[0], fail)
    assert hashes.hash_of(INFOS[0], lambda: 7) == 7
