"""The native hash is the one of the wire, whatever the length and wherever a piece ends."""

import numpy as np
import pytest

from app.rpc_backend import hashing
from app.rpc_backend.wire import fnv

DATA = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8).tobytes()


@pytest.mark.parametrize("size", [0, 1, 63, 4096, 100_000])
def test_both_ways_of_hashing_agree(size: int) -> None:
    assert hashing.fnv1a_64(memoryview(DATA)[:size]) == fnv.fnv1a_64(DATA[:size])


def test_a_hash_goes_on_where_it_ended() -> None:
    state = hashing.fnv1a_64(memoryview(DATA)[:777])
    assert hashing.fnv1a_64(memoryview(DATA)[777:], state) == fnv.fnv1a_64(DATA)


def test_the_known_value_of_a_short_text() -> None:
    assert hashing.fnv1a_64(b"foobar") == 0x85944171F73967E8


def test_without_the_native_core_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_library", lambda: None)
    assert hashing.fnv1a_64(DATA) == fnv.fnv1a_64(DATA)
