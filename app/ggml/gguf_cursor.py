"""Reads GGUF's primitive values: numbers, strings and arrays, never past the end of the file.

`app.ggml.gguf_parse` walks a file with a `Cursor`. A length is held against the bytes that are left
before anything is allocated for it; the error names the file, the thing and the place.
"""

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from mmap import mmap
from typing import Final

import numpy as np

from app.errors import ModelFormatError

MetaValue = bool | int | float | str | list[str] | np.ndarray
Metadata = Mapping[str, MetaValue]

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class ValueType(IntEnum):
    """Type of a metadata value; the number stands in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_SCALARS: Final = {
    ValueType.UINT8: (struct.Struct("<B"), "<u1"),
    ValueType.INT8: (struct.Struct("<b"), "<i1"),
    ValueType.UINT16: (struct.Struct("<H"), "<u2"),
    ValueType.INT16: (struct.Struct("<h"), "<i2"),
    ValueType.UINT32: (struct.Struct("<I"), "<u4"),
    ValueType.INT32: (struct.Struct("<i"), "<i4"),
    ValueType.FLOAT32: (struct.Struct("<f"), "<f4"),
    ValueType.BOOL: (struct.Struct("<?"), "<u1"),
    ValueType.UINT64: (struct.Struct("<Q"), "<u8"),
    ValueType.INT64: (struct.Struct("<q"), "<i8"),
    ValueType.FLOAT64: (struct.Struct("<d"), "<f8"),
}


class Cursor:
    """A position in the file that cannot pass its end."""

    def __init__(self, data: mmap | bytes, path: str) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self.end = len(data)

    def error(self, text: str) -> ModelFormatError:
        """An error that names the file."""
        return ModelFormatError(f"{self.path}: {text}")

    def need(self, size: int, what: str) -> None:
        """Raise unless `size` more bytes exist."""
        if size > self.end - self.at:
            raise self.error(
                f"{what} at byte {self.at}: expected {size} bytes, but only "
                f"{self.end - self.at} are left of {self.end} (truncated or damaged file?)"
            )

    def u32(self, what: str) -> int:
        """Read an unsigned 32-bit number."""
        self.need(4, what)
        value: int = _U32.unpack_from(self.data, self.at)[0]
        self.at += 4
        return value

    def u64(self, what: str) -> int:
        """Read an unsigned 64-bit number."""
        self.need(8, what)
        value: int = _U64.unpack_from(self.data, self.at)[0]
        self.at += 8
        return value

    def string(self, what: str, limit: int | None = None) -> str:
        """Read a length and that many bytes of UTF-8."""
        length = self.u64(f"{what}, length,")
        if limit is not None and length > limit:
            raise self.error(f"{what}: {length} bytes long, expected at most {limit}")
        self.need(length, what)
        raw = self.data[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what}: {error.reason}, expected UTF-8") from None


def read_value(cursor: Cursor, type_: ValueType, what: str) -> MetaValue:
    """Read one value of a type.

    Raises: ModelFormatError.
    """
    return _READERS[type_](cursor, what, type_)


def read_type(cursor: Cursor, what: str) -> ValueType:
    """Read the number of a value type.

    Raises: ModelFormatError.
    """
    number = cursor.u32(f"{what}, type,")
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.error(f"{what}: value type {number}, expected 0 to 12") from None


def _read_scalar(cursor: Cursor, what: str, type_: ValueType) -> MetaValue:
    layout = _SCALARS[type_][0]
    cursor.need(layout.size, what)
    value: bool | int | float = layout.unpack_from(cursor.data, cursor.at)[0]
    cursor.at += layout.size
    return value


def _read_string(cursor: Cursor, what: str, type_: ValueType) -> MetaValue:
    return cursor.string(what)


def _read_array(cursor: Cursor, what: str, type_: ValueType) -> MetaValue:
    element = read_type(cursor, what)
    count = cursor.u64(f"{what}, array length,")
    if element == ValueType.ARRAY:
        raise cursor.error(f"{what}: an array of arrays, expected a flat one")
    if element == ValueType.STRING:
        return _read_strings(cursor, what, count)
    layout, dtype = _SCALARS[element]
    cursor.need(count * layout.size, f"{what}, array of {count} {element.name},")
    # A copy, since a view would keep the file mapped.
    array = np.frombuffer(cursor.data, dtype, count, cursor.at).copy()
    cursor.at += count * layout.size
    return array != 0 if element == ValueType.BOOL else array


def _read_strings(cursor: Cursor, what: str, count: int) -> list[str]:
    """Read an array of strings; one flat loop, since a vocabulary has 262,144 of them."""
    cursor.need(count * 8, f"{what}, array of {count} strings,")
    data, at, end, length_at = cursor.data, cursor.at, cursor.end, _U64.unpack_from
    strings: list[str] = []
    try:
        for _ in range(count):
            (length,) = length_at(data, at)
            at += 8
            if length > end - at:
                break
            strings.append(data[at : at + length].decode())
            at += length
    except struct.error:
        pass
    except UnicodeDecodeError as error:
        text = f"{what}, string {len(strings)}: {error.reason}, expected UTF-8"
        raise cursor.error(text) from None
    if len(strings) < count:
        raise cursor.error(
            f"{what}: string {len(strings)} of {count} at byte {at} passes the end of the file "
            f"of {end} bytes (truncated or damaged file?)"
        )
    cursor.at = at
    return strings


_READERS: Final[dict[ValueType, Callable[[Cursor, str, ValueType], MetaValue]]] = {
    **dict.fromkeys(_SCALARS, _read_scalar),
    ValueType.STRING: _read_string,
    ValueType.ARRAY: _read_array,
}
