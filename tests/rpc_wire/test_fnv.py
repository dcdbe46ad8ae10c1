"""FNV-1a-64 against its published vectors and the byte-by-byte definition."""

import random

import pytest

from app.rpc_backend.wire.fnv import OFFSET_BASIS, PRIME, fnv1a_64

PUBLISHED = {
    b"": 0xCBF29CE484222325,
    b"a": 0xAF63DC4C8601EC8C,
    b"b": 0xAF63DF4C8601F1A5,
    b"foobar": 0x85944171F73967E8,
}


def by_definition(data: bytes, state: int = OFFSET_BASIS) -> int:
    for byte in data:
        state = ((state ^ byte) * PRIME) % 2**64
    return state


@pytest.mark.parametrize("text", PUBLISHED)
def test_published_vectors(text: bytes) -> None:
    assert fnv1a_64(text) == PUBLISHED[text]


@pytest.mark.parametrize("size", [4095, 4096, 65_537, 262_144, 1_200_003])
def test_long_data_hash_as_defined(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert fnv1a_64(data) == by_definition(data)


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\x01\x80"])
def test_regular_data_hash_as_defined(fill: bytes) -> None:
    data = fill * (70_000 // len(fill))
    assert fnv1a_64(data) == by_definition(data)


def test_data_in_pieces_has_the_hash_of_the_whole() -> None:
    data = random.Random(3).randbytes(300_000)
    state = OFFSET_BASIS
    for at in range(0, len(data), 70_001):
        state = fnv1a_64(memoryview(data)[at : at + 70_001], state)
    assert state == fnv1a_64(data)
