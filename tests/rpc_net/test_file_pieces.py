"""Pieces of a file: all bytes in order, whatever the size, and their hash."""

import os
import random
from itertools import pairwise
from pathlib import Path

import pytest

from app.rpc_backend.wire.fnv import fnv1a_64
from app.rpc_backend.wire.layout import Body
from app.rpc_backend.worker.file_pieces import HandedOver, hand_over

MIB = 1 << 20
DATA = random.Random(4).randbytes(9 * MIB + 77)


@pytest.mark.parametrize("start", [0, 13])
@pytest.mark.parametrize("size", [0, 1, 1000, MIB, MIB + 1, 4 * MIB - 1, 4 * MIB, 9 * MIB + 5])
def test_every_byte_arrives_once_and_is_hashed(tmp_path: Path, start: int, size: int) -> None:
    assert handed_over(tmp_path, DATA, start, size) == DATA[start : start + size]


@pytest.mark.parametrize("size", [1000, 5 * MIB])
def test_a_file_that_ends_early_gives_what_there_is(tmp_path: Path, size: int) -> None:
    assert handed_over(tmp_path, DATA[: size - 1], 0, size) == DATA[: size - 1]


def handed_over(folder: Path, content: bytes, start: int, size: int) -> bytes:
    """Hand over part of a file; check what is said of it and return what arrived."""
    path = folder / "file"
    path.write_bytes(content)
    target = bytearray(size)
    seen = []

    def write(piece: Body, at: int) -> None:
        target[at : at + len(piece)] = piece
        seen.append(range(at, at + len(piece)))

    descriptor = os.open(path, os.O_RDONLY)
    try:
        result = hand_over(descriptor, start, size, write)
        assert hand_over(descriptor, start, size) == result
    finally:
        os.close(descriptor)
    expected = content[start : start + size]
    assert all(a.stop == b.start for a, b in pairwise(seen))
    assert result == HandedOver(len(expected), fnv1a_64(expected))
    return bytes(target[: result.n_bytes])
