"""Quantised rows → float32, in numpy: the exact reference, and the engine's way to read token
embeddings.

The block codecs are those of the `gguf` package, which are bit-equal to ggml's; floats are plain
numpy. Throughput is tens of millions of weights a second, enough for embedding rows; kernels have
their own decoders and are tested against this one. `gguf` takes a fifth of a second to import, so
that waits until a quantised row is read.
"""

from functools import cache
from typing import Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from app.errors import GraphError, UnsupportedError
from app.ggml.types import MODEL_TYPES, TRAITS, GGMLType, row_size

Bytes = bytes | bytearray | memoryview

_FLOATS: Final = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16})


def dequantize_rows(type_: GGMLType, data: Bytes, ne0: int) -> NDArray[np.float32]:
    """Return the rows of `ne0` elements that stand in `data` as F32 (n_rows, ne0), a fresh array.

    Raises: UnsupportedError for a type that models may not use, GraphError when `data` is not a
    whole number of rows.
    """
    if type_ not in MODEL_TYPES:
        raise UnsupportedError(f"rows of {TRAITS[type_].name}: expected a type that models may use")
    raw = np.frombuffer(data, np.uint8)
    rows = raw.reshape(_n_rows(type_, raw.size, ne0), -1)
    if type_ in _FLOATS:
        return _float_rows(type_, rows)
    # A damaged scale may be infinite; that is the reader's business, not a warning's.
    with np.errstate(all="ignore"):
        result = _codec(type_).dequantize_rows(rows)
    return result.astype(np.float32, copy=False)


class _Codec(Protocol):
    """What the gguf package has for each quantised type."""

    def dequantize_rows(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return rows (n_rows, row_bytes) as floats (n_rows, ne0)."""


@cache
def _codec(type_: GGMLType) -> _Codec:
    # The package's `dequantize` would take the rows 16 at a time, which costs an engine that reads
    # one row per token more than the row.
    from gguf import quants

    codec = getattr(quants, TRAITS[type_].name.upper())
    codec.init_grid()
    return cast(_Codec, codec)


def _n_rows(type_: GGMLType, size: int, ne0: int) -> int:
    try:
        row_bytes = row_size(type_, ne0)
    except ValueError as error:
        raise GraphError(str(error)) from None
    if row_bytes <= 0 or size % row_bytes or size == 0:
        raise GraphError(
            f"{size} bytes of {TRAITS[type_].name}: expected whole rows of {row_bytes} bytes"
        )
    return size // row_bytes


def _float_rows(type_: GGMLType, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    if type_ == GGMLType.F32:
        return rows.view("<f4").astype(np.float32)
    if type_ == GGMLType.F16:
        return rows.view("<f2").astype(np.float32)
    return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
