"""FNV-1a-64, the hash under which weights are offered to a worker, at a few hundred MB/s.

h = (h xor byte) * prime looks serial, but the xor touches only the low byte of h, and low bytes
depend on nothing but low bytes. So the data is cut into thousands of blocks that advance side by
side: first their starting low bytes are found, one bit after the other (bit k of a product is bit k
of the factor plus something that lower bits decide, hence a running xor over the blocks), then each
block is hashed from its low byte alone, and what the upper bytes add is linear modulo 2^64.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from app.rpc_backend.wire.layout import Body

OFFSET_BASIS: Final = 0xCBF29CE484222325
PRIME: Final = 0x100000001B3

_MASK: Final = 2**64 - 1
_MODULUS: Final = 2**64

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a piece of data is cut: blocks advance together, `length` steps each."""

    n_blocks: int
    length: int

    @property
    def size(self) -> int:
        return self.n_blocks * self.length


_SHAPES: Final = tuple(_Shape(n, 16) for n in (65_536, 16_384, 4_096, 256))
"""Largest first; wide and short blocks keep one pass of 16 rows in the processor's cache."""


def fnv1a_64(data: Body, state: int = OFFSET_BASIS) -> int:
    """Return the hash of `data`, continued from `state`."""
    array = np.frombuffer(data, np.uint8)
    at = 0
    for shape in _SHAPES:
        while array.size - at >= shape.size:
            state = _hash_piece(array[at : at + shape.size], state, shape)
            at += shape.size
    for byte in array[at:].tolist():
        state = ((state ^ byte) * PRIME) & _MASK
    return state


def _hash_piece(piece: U8, state: int, shape: _Shape) -> int:
    """Hash exactly one shape's worth of bytes."""
    rows = np.ascontiguousarray(piece.reshape(shape.n_blocks, shape.length).T)
    start = _starting_low_bytes(rows, state & 0xFF)
    begin = start.astype(np.uint64)
    end = begin.copy()
    prime = np.uint64(PRIME)
    for row in rows:
        np.bitwise_xor(end, row, out=end)
        np.multiply(end, prime, out=end)
    end -= begin * np.uint64(pow(PRIME, shape.length, _MODULUS))
    end *= _powers(shape)
    return (int(end.sum(dtype=np.uint64)) + state * pow(PRIME, shape.size, _MODULUS)) & _MASK


def _starting_low_bytes(rows: U8, low: int) -> U8:
    """Return the low byte with which each block (a column of `rows`) begins."""
    start = np.zeros(rows.shape[1], np.uint8)
    step = np.uint8(PRIME & 0xFF)
    x = np.empty_like(start)
    for bit in range(8):
        np.copyto(x, start)
        for row in rows:
            np.bitwise_xor(x, row, out=x)
            np.multiply(x, step, out=x)
        flips = np.bitwise_xor.accumulate(((x ^ start) >> bit) & 1)
        first = (low >> bit) & 1
        start[1:] |= (flips[:-1] ^ np.uint8(first)) << bit
        start[0] |= first << bit
    return start


@cache
def _powers(shape: _Shape) -> U64:
    """Return prime to the number of bytes that follow each block."""
    step = pow(PRIME, shape.length, _MODULUS)
    powers, value = [0] * shape.n_blocks, 1
    for block in reversed(range(shape.n_blocks)):
        powers[block] = value
        value = value * step & _MASK
    return np.array(powers, np.uint64)
