"""How the loader brings weights to workers: each tensor is hashed once per file."""

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from app.devices.base import Weight
from app.devices.null import NullDevice
from app.engine import weights
from app.errors import DeviceLostError
from app.rpc_backend.client.device import RpcDevice
from app.rpc_backend.hashing import fnv1a_64
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.worker.server import ServerSettings
from app.rpc_backend.worker.tensor_cache import TensorCache
from tests.helpers.loading import Loaded, load, write_model
from tests.helpers.rpc_link import serving

LIMIT_S: Final = 60


class Counter:
    """Counts hashes that are computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n = 0
        monkeypatch.setattr(weights, "fnv1a_64", self._counted)

    def _counted(self, data: Body, state: int) -> int:
        self.n += 1
        return fnv1a_64(data, state)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "a.gguf")


def load_on(n_workers: int, model: Path, hashes: Path | None) -> Loaded:
    with ExitStack() as stack:
        servers = [stack.enter_context(serving([NullDevice()])) for _ in range(n_workers)]
        rpc = [f"127.0.0.1:{server.port}" for server in servers]
        return load(model, rpc, hash_folder=hashes, check=False)


def test_no_tensor_of_a_file_is_hashed_twice(counter: Counter, model: Path, tmp_path: Path) -> None:
    load_on(2, model, tmp_path / "hashes")
    # Seven matrices in each of two layers, and the output.
    assert counter.n == 15
    load_on(1, model, tmp_path / "hashes")
    assert counter.n == 15


def test_a_hash_of_parts_is_that_of_the_whole(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "PART_BYTES", 100_001)
    cache = TensorCache(tmp_path / "cache")
    with serving([NullDevice()], ServerSettings(cache=cache)) as server:
        load(model, [f"127.0.0.1:{server.port}"], check=False)
        again = load(model, [f"127.0.0.1:{server.port}"], check=False)
    # The cache hashes what it stores by itself.
    assert again.progress.had > 0.99 * again.progress.total


def test_a_changed_file_is_hashed_again(counter: Counter, model: Path, tmp_path: Path) -> None:
    load_on(1, model, tmp_path / "hashes")
    write_model(model, seed=1)
    load_on(1, model, tmp_path / "hashes")
    assert counter.n == 30


def test_a_lost_worker_ends_the_loading_of_the_others(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large model takes minutes, and the server does not start without the lost one."""
    failed, begun = threading.Event(), threading.Event()
    left: list[Weight] = []

    def set_weights(self: RpcDevice, given: Iterable[Weight]) -> None:
        rest = iter(given)
        next(rest)
        if self.info.name == "RPC1":
            assert begun.wait(LIMIT_S)
            raise DeviceLostError("the cable")
        begun.set()
        failed.wait(LIMIT_S)
        left.extend(rest)

    monkeypatch.setattr(RpcDevice, "set_weights", set_weights)
    monkeypatch.setattr(weights, "Event", lambda: failed, raising=False)
    with pytest.raises(DeviceLostError, match="the cable"):
        load_on(2, model, None)
    assert left == []


def test_progress_is_told_for_each_worker_and_ends_with_all_of_it(
    model: Path, tmp_path: Path
) -> None:
    progress = load_on(2, model, None).progress
    assert [device.name for device in progress.devices] == ["RPC0", "RPC1"]
    assert all(0 < device.total == device.sent for device in progress.devices)
    assert progress.done == progress.total
