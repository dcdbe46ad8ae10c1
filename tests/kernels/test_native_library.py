"""Loading the native core: its structs, its levels, and threads that cost nothing while idle."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from app.errors import ConfigError, DeviceLostError
from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.kernels.cpu import library
from app.kernels.cpu.layout import STEP, STEP_FORMAT, Kind, Status
from app.kernels.cpu.step import Ref, StepSpec
from tests.helpers.eventually import eventually
from tests.helpers.native import native_library
from tests.helpers.proc import n_wakeups, processor_ticks, threads


@pytest.mark.parametrize("level", library.LEVELS)
def test_the_structs_are_those_of_the_library(level: str) -> None:
    assert native_library(level).has_layout()
    assert STEP_FORMAT.size == STEP.itemsize


def test_a_packed_step_has_its_values_in_their_fields() -> None:
    x = Ref(1000, 64, (4, 3, 2, 1), (4, 16, 48, 96), 7, 1)
    params = Params.pack("2i", 5, -6)
    packed = StepSpec(Kind.SCALE, 9, params, x, (None, x), 0).pack(None)
    step = np.frombuffer(packed, STEP)[0]
    assert (step["kind"], step["node"], step["flags"]) == (Kind.SCALE, 9, 0)
    assert step["params"].tobytes() == params.raw
    assert step["src"]["data"].tolist() == [0, 1000, 0, 0, 0]
    assert step["dst"]["ne"].tolist() == [4, 3, 2, 1]
    assert step["dst"]["nb"].tolist() == [4, 16, 48, 96]
    assert (step["dst"]["type"], step["dst"]["layout"]) == (7, 1)


def test_the_best_supported_level_is_taken_and_any_can_be_asked_for() -> None:
    best = native_library()
    usable = []
    for level in library.LEVELS:
        try:
            found, _ = library.load_library(level)
        except ConfigError:
            continue
        assert found is not None and found.level == level
        usable.append(level)
    assert best.level == usable[0]
    with pytest.raises(ConfigError, match="level 'sse9': expected one of avx512, avx2, portable"):
        library.load_library("sse9")


def test_without_a_library_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    (tmp_path / "_native_avx2.so").write_bytes(b"not a library")
    found, why = library.load_library()
    assert found is None
    assert "avx512: not built" in why and "avx2: cannot be loaded" in why
    with pytest.raises(ConfigError, match="level 'portable' cannot be used: portable: not built"):
        library.load_library("portable")


def _sum_step(values: np.ndarray, kind: int = Kind.BINARY) -> bytes:
    n = values.size
    x = Ref(values.ctypes.data, 4 * n, (n, 1, 1, 1), (4, 4 * n, 4 * n, 4 * n), 0)
    step = StepSpec(Kind.BINARY, 0, Params.pack("i", Op.ADD), x, (x, x), n)
    step.kind = kind  # type: ignore[assignment]  # one that does not exist
    return step.pack(None)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_steps_run_in_order_on_all_threads(threads: int) -> None:
    pool = native_library().new_pool(threads)
    values = np.ones(100_000, np.float32)
    steps = np.frombuffer(20 * _sum_step(values), np.uint8)
    times = np.zeros(20, np.int64)
    assert pool.run(steps.ctypes.data, 20, times.ctypes.data) is None
    assert (values == 2**20).all()
    assert (times > 0).all()
    pool.close()


def test_a_step_that_cannot_run_ends_the_run_and_is_named() -> None:
    pool = native_library().new_pool(3)
    values = np.ones(64, np.float32)
    good, bad = _sum_step(values), _sum_step(values, 99)
    steps = np.frombuffer(good + good + bad + good, np.uint8)
    for _ in range(50):
        values[:] = 1
        failure = pool.run(steps.ctypes.data, 4, None)
        assert failure is not None
        assert (failure.status, failure.failed) == (Status.UNSUPPORTED, 2)
        assert (values == 4).all()
    pool.close()


def test_a_closed_pool_is_refused() -> None:
    pool = native_library().new_pool(2)
    pool.close()
    pool.close()
    with pytest.raises(DeviceLostError):
        pool.run(0, 0, None)
    with pytest.raises(DeviceLostError):
        pool.repack(3, 0, 32, 16, forward=True)


def test_waiting_threads_use_no_processor() -> None:
    pid = os.getpid()
    before = threads(pid)
    pool = native_library().new_pool(4)
    ours = threads(pid) - before
    assert len(ours) == 3
    values = np.ones(64, np.float32)
    steps = np.frombuffer(_sum_step(values), np.uint8)
    assert pool.run(steps.ctypes.data, 1, None) is None

    def used() -> tuple[int, int]:
        return processor_ticks(pid, ours), n_wakeups(pid, ours)

    def is_still() -> bool:
        begun = used()
        threading.Event().wait(0.3)
        return used() == begun

    # At first they look for more work for a moment.
    eventually(is_still)
    pool.close()
