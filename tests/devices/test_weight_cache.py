"""The cache of decoded weights: its limit, its order of giving up, and what invalidates it."""

import torch

from app.devices.torch_buffer import TorchBuffer, host_storage
from app.devices.weight_cache import MAX_ENTRIES, CachedWeight, WeightCache

SIZE = 400


def _cache(budget: int | None = None, room: int = 10**6) -> tuple[WeightCache, TorchBuffer]:
    return WeightCache(lambda: room, budget), TorchBuffer(1000, host_storage(1000))


def _entry(cache: WeightCache, buffer: TorchBuffer, at: int) -> CachedWeight:
    found = cache.entry(buffer, at, (at, at + 100), SIZE, lambda: torch.ones(1, 1, 10, 10))
    assert found is not None
    return found


def _use(cache: WeightCache, *entries: CachedWeight) -> list[bool]:
    cache.run += 1
    return [entry.value() is not None for entry in entries]


def test_a_region_is_decoded_once() -> None:
    cache, buffer = _cache()
    entry = _entry(cache, buffer, 0)
    first = entry.value()
    assert first is not None and entry.value() is first
    assert _entry(cache, buffer, 0) is entry
    assert cache.nbytes == SIZE


def test_only_overlapping_writes_invalidate() -> None:
    cache, buffer = _cache()
    entries = [_entry(cache, buffer, at) for at in (0, 100, 200)]
    assert _use(cache, *entries) == [True] * 3
    cache.invalidate(buffer, 100, 200)
    assert [e.held is not None for e in entries] == [True, False, True]
    cache.invalidate(TorchBuffer(10, host_storage(10)), 0, 10)
    cache.invalidate(buffer, 99, 100)
    assert [e.held is not None for e in entries] == [False, False, True]
    cache.drop(buffer)
    assert cache.nbytes == 0


def test_looks_at_the_same_bytes_are_counted() -> None:
    cache, buffer = _cache()

    def look(key: int) -> CachedWeight | None:
        return cache.entry(buffer, key, (0, 100), SIZE, lambda: torch.ones(1, 1, 10, 10))

    first = look(0)
    assert all(look(key) is not None for key in range(1, MAX_ENTRIES))
    assert look(MAX_ENTRIES) is None
    assert look(0) is first
    cache.drop(buffer)
    assert look(MAX_ENTRIES) is not None


def test_the_budget_holds() -> None:
    cache, buffer = _cache(budget=2 * SIZE + 1)
    entries = [_entry(cache, buffer, at) for at in (0, 100, 200)]
    for _ in range(5):
        assert _use(cache, *entries) == [True, True, False]
    assert cache.nbytes == 2 * SIZE


def test_the_room_of_the_device_holds() -> None:
    cache, buffer = _cache(room=SIZE)
    entries = [_entry(cache, buffer, at) for at in (0, 100)]
    assert _use(cache, *entries) == [True, False]


def test_an_idle_copy_gives_way_to_a_new_one() -> None:
    cache, buffer = _cache(budget=2 * SIZE)
    old, other, new = (_entry(cache, buffer, at) for at in (0, 100, 200))
    _use(cache, old, other)
    for _ in range(20):
        _use(cache, other)
    assert _use(cache, new) == [True]
    assert old.held is None and other.held is not None


def test_shrinking_gives_up_the_longest_unused_first() -> None:
    cache, buffer = _cache()
    entries = [_entry(cache, buffer, at) for at in (0, 100, 200)]
    for entry in (entries[1], entries[2], entries[0]):
        _use(cache, entry)
    cache.shrink(1)
    assert [e.held is not None for e in entries] == [True, False, True]
    cache.shrink(SIZE + 1)
    assert cache.nbytes == 0
