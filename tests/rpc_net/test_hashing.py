"""The native hash is the one of the wire, whatever the length and wherever a piece ends."""

import numpy as np
import pytest

from app.kernels.cpu.library import LEVELS
from app.rpc_backend import hashing
from app.rpc_backend.wire import fnv
from tests.helpers.native import native_library

DATA = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8).tobytes()


@pytest.mark.parametrize("size", [0, 1, 63, 255, 256, 257, 511, 512, 513, 1300, 4096, 100_000])
def test_both_ways_of_hashing_agree(size: int) -> None:
    assert hashing.fnv1a_64(memoryview(DATA)[:size]) == fnv.fnv1a_64(DATA[:size])


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_agrees_with_the_definition(level: str) -> None:
    library = native_library(level)
    rng = np.random.default_rng(1)
    for size in (200, 512, 1024, 1999):
        data = rng.integers(0, 256, size, dtype=np.uint8)
        state = int(rng.integers(0, 1 << 63))
        expected = state
        for byte in data.tolist():
            expected = (expected ^ byte) * fnv.PRIME % (1 << 64)
        assert library.fnv1a_64(data.ctypes.data, size, state) == expected


def test_a_hash_goes_on_where_it_ended() -> None:
    state = hashing.fnv1a_64(memoryview(DATA)[:777])
    assert hashing.fnv1a_64(memoryview(DATA)[777:], state) == fnv.fnv1a_64(DATA)


def test_the_known_value_of_a_short_text() -> None:
    assert hashing.fnv1a_64(b"foobar") == 0x85944171F73967E8


def test_without_the_native_core_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_library", lambda: None)
    assert hashing.fnv1a_64(DATA) == fnv.fnv1a_64(DATA)
