"""Weights are sent once: a real worker, the way of a real load, and whatever befalls the cache."""

import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.ggml.gguf_file import GGUFFile
from app.rpc_backend.hashing import fnv1a_64
from app.rpc_backend.wire.constants import MIN_HASHED_BYTES
from tests.helpers.assets import asset
from tests.helpers.eventually import eventually
from tests.helpers.loading import load, write_model
from tests.helpers.process import free_port, listens, own_worker, running
from tests.helpers.stock_peers import stock_text_v8

MIB = 1 << 20
OFFERS_BYTES = 100_000
"""More than all requests of a load that has no weights to send, and than its small weights."""

COUNTING = "1, 2, 3, 4, 5, 6,"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "a.gguf")


def hashed_bytes(path: Path) -> int:
    """Bytes of the weights that are worth a hash, but not of the token embedding, which stays."""
    with GGUFFile.open(path) as gguf:
        return sum(t.nbytes for t in gguf.tensors.values() if t.nbytes >= MIN_HASHED_BYTES)


def is_sound(folder: Path) -> bool:
    """Whether there is nothing in a cache but files under their hashes."""
    files = list(folder.iterdir())
    return all(path.name == f"{fnv1a_64(path.read_bytes()):016x}" for path in files)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def at(port: int) -> list[str]:
    return [f"127.0.0.1:{port}"]


def test_a_second_load_sends_hashes_only(model: Path, tmp_path: Path) -> None:
    with own_worker("-c", str(tmp_path)) as (_, port):
        first, second = load(model, at(port)), load(model, at(port))
    assert first.is_right and second.is_right
    assert (first.progress.had, second.progress.had) == (0, hashed_bytes(model))
    assert second.bytes_sent[0] < OFFERS_BYTES
    assert is_sound(tmp_path)
    assert size_of(tmp_path) == hashed_bytes(model)


def flip(path: Path, other: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path: Path, other: bytes) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path, other: bytes) -> None:
    path.write_bytes(b"")


def lengthen(path: Path, other: bytes) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def replace(path: Path, other: bytes) -> None:
    path.write_bytes(other)


def test_damaged_and_replaced_files_are_noticed_removed_and_sent_again(
    model: Path, tmp_path: Path
) -> None:
    with own_worker("-c", str(tmp_path)) as (worker, port):
        load(model, at(port))
        damages = (flip, cut, empty, lengthen, replace)
        paths = sorted(tmp_path.iterdir())
        lost = 0
        for damage, path in zip(damages, paths, strict=False):
            lost += path.stat().st_size
            damage(path, paths[-1].read_bytes())
        second, third = load(model, at(port)), load(model, at(port))
        assert worker.output.count("; removed") == len(damages)
    assert second.is_right and third.is_right
    assert second.progress.had == hashed_bytes(model) - lost
    assert third.progress.had == hashed_bytes(model)
    assert is_sound(tmp_path)


def test_models_that_share_tensors_share_one_copy(model: Path, tmp_path: Path) -> None:
    longer = write_model(tmp_path / "longer.gguf", n_layer=3)
    with own_worker("-c", str(tmp_path / "cache")) as (_, port):
        load(model, at(port))
        second = load(longer, at(port))
    assert second.is_right
    assert second.progress.had == hashed_bytes(model)
    assert size_of(tmp_path / "cache") == hashed_bytes(longer)


def test_clients_that_bring_the_same_weights_at_once_leave_one_sound_copy(
    model: Path, tmp_path: Path
) -> None:
    with own_worker("-c", str(tmp_path)) as (_, port), ThreadPoolExecutor(3) as pool:
        loads = list(pool.map(lambda _: load(model, at(port)), range(3)))
    assert all(one.is_right for one in loads)
    assert is_sound(tmp_path)
    assert size_of(tmp_path) == hashed_bytes(model)


def vanish(folder: Path) -> None:
    shutil.rmtree(folder)


def become_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


@pytest.mark.parametrize(("change", "had_afterwards"), [(vanish, True), (become_a_file, False)])
def test_a_folder_that_goes_away_costs_the_cache_and_nothing_else(
    model: Path, tmp_path: Path, change: Callable[[Path], None], had_afterwards: bool
) -> None:
    folder = tmp_path / "cache"
    with own_worker("-c", str(folder)) as (worker, port):
        load(model, at(port))
        change(folder)
        second, third = load(model, at(port)), load(model, at(port))
        assert worker.process.poll() is None
        assert ("W rpc_backend" in worker.output) != had_afterwards
    assert second.is_right and third.is_right
    assert second.progress.had == 0
    assert (third.progress.had > 0) == had_afterwards


def test_a_folder_that_cannot_be_made_is_a_warning(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with own_worker("-c", str(tmp_path / "file" / "cache")) as (worker, port):
        assert load(model, at(port)).is_right
        assert "going on without" in worker.output
        assert "local cache    : n/a" in worker.output


def test_a_disk_that_takes_no_more_costs_the_cache_and_nothing_else(
    model: Path, tmp_path: Path
) -> None:
    """The limit on file sizes lets every write of a large weight fail half-way."""
    port = free_port()
    command = ["prlimit", f"--fsize={200_000}", sys.executable, "-m", "app.cli.rpc_server"]
    with running([*command, "-p", str(port), "-t", "1", "-c", str(tmp_path)]) as worker:
        eventually(lambda: worker.process.poll() is not None or listens(port))
        loads = [load(model, at(port)) for _ in range(2)]
        assert worker.process.poll() is None
        assert "File too large" in worker.output
    assert all(one.is_right for one in loads)
    assert loads[1].progress.had == size_of(tmp_path) > 0
    assert is_sound(tmp_path)


@pytest.mark.slow
def test_five_models_stay_within_the_limit_of_the_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    models = [write_model(tmp_path / f"{i}.gguf", n_layer=9, seed=i) for i in range(5)]
    assert sum(map(hashed_bytes, models)) > 90 * MIB
    with own_worker("-c", str(cache), "--cache-size", "50M") as (_, port):
        for path in models:
            assert load(path, at(port)).is_right
            assert size_of(cache) <= 50 * MIB
        assert is_sound(cache)
        again = load(models[-1], at(port))
    assert again.progress.had == hashed_bytes(models[-1])
    assert size_of(cache) > 40 * MIB


def test_weights_of_a_worker_that_has_the_file_are_not_sent(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_SERVE_CACHE", str(tmp_path))
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    shutil.copy(model, theirs / "another-name.gguf")
    cache = tmp_path / "cache"
    with own_worker("--models", str(theirs), "-c", str(cache)) as (worker, port):
        eventually(lambda: "at hand" in worker.output)
        first = load(model, at(port))
        assert list(cache.iterdir()) == []
        (theirs / "another-name.gguf").unlink()
        second = load(model, at(port))
    assert first.is_right and second.is_right
    assert first.progress.had == hashed_bytes(model)
    assert first.bytes_sent[0] < OFFERS_BYTES
    assert second.progress.had == 0
    assert is_sound(cache)
    assert size_of(cache) == hashed_bytes(model)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.peer_v8
@pytest.mark.parametrize("source", ["cache", "models"])
def test_a_stock_client_does_not_send_large_weights_again(source: str, tmp_path: Path) -> None:
    path = asset("smollm2")
    (tmp_path / "link.gguf").symlink_to(path)
    flags = {"cache": ("-c", str(tmp_path / "cache")), "models": ("--models", str(tmp_path))}
    with own_worker(*flags[source]) as (worker, port):
        if source == "models":
            eventually(lambda: "at hand" in worker.output)
        else:
            stock_text_v8(path, port, COUNTING, 1)
        before = len(worker.output)
        assert stock_text_v8(path, port, COUNTING, 8) == stock_text_v8(path, None, COUNTING, 8)

        def received() -> float:
            found = re.findall(r"([0-9.]+) MiB in", worker.output[before:])
            return max(map(float, found), default=0.0)

        # Before it come connections that only ask, and its line comes when it has gone.
        eventually(lambda: received() > 10)
        # The output matrix has 28.7 of 92.1 MiB, and is the only tensor above the stock threshold.
        assert received() < 65
