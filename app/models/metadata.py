"""Typed readers of GGUF metadata.

Architectures read every key through here. A key without a default is required; one that is absent,
of a foreign type or out of range raises ModelFormatError with the key, the value and what was
expected, so a wrong file is refused before a byte of it is sent anywhere.
"""

import reprlib
from typing import Final

import numpy as np

from app.errors import ModelFormatError
from app.ggml.gguf_file import Metadata, MetaValue

# Graphs carry whole numbers as int32 and others as float32.
I32_MAX: Final = 2**31 - 1
F32_MAX: Final = float(np.finfo(np.float32).max)


def wrong_value(key: str, value: object, expected: str) -> ModelFormatError:
    """Make the error for a metadata value that does not fit."""
    return ModelFormatError(f"metadata key '{key}' is {reprlib.repr(value)}: expected {expected}")


def _find(metadata: Metadata, key: str, expected: str) -> MetaValue:
    value = metadata.get(key)
    if value is None:
        raise ModelFormatError(f"metadata key '{key}' is missing: expected {expected}")
    return value


def u32(metadata: Metadata, key: str, default: int | None = None) -> int:
    """Read a whole number from 0 to 2^31 - 1.

    Raises: ModelFormatError.
    """
    if default is not None and key not in metadata:
        return default
    expected = f"a whole number from 0 to {I32_MAX}"
    value = _find(metadata, key, expected)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= I32_MAX:
        raise wrong_value(key, value, expected)
    return value


def size(metadata: Metadata, key: str, default: int | None = None) -> int:
    """Read a whole number from 1 to 2^31 - 1.

    Raises: ModelFormatError.
    """
    value = u32(metadata, key, default)
    if value == 0:
        raise wrong_value(key, value, "a number above 0")
    return value


def f32(metadata: Metadata, key: str, default: float | None = None) -> float:
    """Read a number that is finite as a float32.

    Raises: ModelFormatError.
    """
    if default is not None and key not in metadata:
        return default
    value = _find(metadata, key, "a finite number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_value(key, value, "a finite number")
    if not abs(value) <= F32_MAX:  # so written for NaN
        raise wrong_value(key, value, "a finite number")
    return float(value)


def text(metadata: Metadata, key: str, default: str | None = None) -> str:
    """Read a string.

    Raises: ModelFormatError.
    """
    if default is not None and key not in metadata:
        return default
    value = _find(metadata, key, "a string")
    if not isinstance(value, str):
        raise wrong_value(key, value, "a string")
    return value


def sizes_per_layer(
    metadata: Metadata, key: str, n_layer: int, default: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Read one number above 0 per layer; a single number counts for all of them.

    Raises: ModelFormatError.
    """
    if default is not None and key not in metadata:
        return default
    value = _find(metadata, key, f"a number or {n_layer} numbers")
    if not isinstance(value, np.ndarray):
        return (size(metadata, key),) * n_layer
    numbers = layer_array(metadata, key, n_layer)
    if min(numbers) <= 0 or max(numbers) > I32_MAX:
        raise wrong_value(key, value, "numbers above 0")
    return numbers


def layer_array(metadata: Metadata, key: str, n_layer: int) -> tuple[int, ...]:
    """Read an array of `n_layer` whole numbers or truth values.

    Raises: ModelFormatError.
    """
    expected = f"an array of {n_layer} whole numbers"
    value = _find(metadata, key, expected)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biu":
        raise wrong_value(key, value, expected)
    if value.shape != (n_layer,):
        raise wrong_value(key, value, expected)
    return tuple(int(number) for number in value)
