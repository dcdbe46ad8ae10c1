"""Typed reading of single GGUF metadata keys.

Used by the loaders of this room. A key that is absent gives the default; a key of another kind than
expected raises ModelFormatError that names the key, what it holds and what was expected.
"""

from typing import Final

import numpy as np

from app.errors import ModelFormatError
from app.ggml.gguf_file import Metadata, MetaValue

_NO_TOKEN: Final = (1 << 32) - 1


def _wrong(key: str, value: MetaValue, expected: str) -> ModelFormatError:
    return ModelFormatError(f"key {key!r} holds {type(value).__name__}, expected {expected}")


def text_value(metadata: Metadata, key: str, default: str = "") -> str:
    """Return a string key.

    Raises: ModelFormatError.
    """
    value = metadata.get(key, default)
    if not isinstance(value, str):
        raise _wrong(key, value, "a string")
    return value


def flag_value(metadata: Metadata, key: str, default: bool) -> bool:
    """Return a boolean key.

    Raises: ModelFormatError.
    """
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise _wrong(key, value, "a boolean")
    return value


def id_value(metadata: Metadata, key: str) -> int | None:
    """Return a token id key; None when absent or written as -1.

    Raises: ModelFormatError.
    """
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(key, value, "a token id")
    return None if value in (-1, _NO_TOKEN) else value


def text_list(metadata: Metadata, key: str) -> list[str] | None:
    """Return an array of strings; None when absent.

    Raises: ModelFormatError.
    """
    value = metadata.get(key)
    if value is not None and not isinstance(value, list):
        raise _wrong(key, value, "an array of strings")
    return value


def number_list(metadata: Metadata, key: str, n_least: int) -> list[float] | None:
    """Return an array of numbers with at least `n_least` elements as Python numbers; None when
    absent.

    Raises: ModelFormatError.
    """
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
        raise _wrong(key, value, "an array of numbers")
    if len(value) < n_least:
        raise ModelFormatError(
            f"key {key!r} has {len(value)} elements, expected one for each of {n_least} tokens"
        )
    numbers: list[float] = value.tolist()
    return numbers


def id_list(metadata: Metadata, key: str) -> list[int]:
    """Return an array of token ids as Python numbers; an empty one when absent.

    Raises: ModelFormatError.
    """
    value = metadata.get(key)
    if value is None:
        return []
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
        raise _wrong(key, value, "an array of token ids")
    ids: list[int] = value.tolist()
    return ids
