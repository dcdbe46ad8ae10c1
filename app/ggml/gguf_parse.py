"""GGUF bytes → metadata and tensor list; every count, length and offset is held against the bytes
that are really there before anything is allocated for it.

`app.ggml.gguf_file` calls it with a mapped file. Follows the GGUF specification (versions 2 and 3,
little endian) and the limits of gguf.cpp at llama.cpp b11434. Whatever the bytes are, the outcome
is a result or a ModelFormatError or UnsupportedError that names the file and the place.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from mmap import mmap
from typing import Final

import numpy as np

from app.errors import ModelFormatError, UnsupportedError
from app.ggml.tensor import MAX_DIMS, MAX_NAME, Shape, make_shape
from app.ggml.type_names import describe_types, type_label
from app.ggml.types import MODEL_TYPES, TRAITS, GGMLType, row_size

MetaValue = bool | int | float | str | list[str] | np.ndarray
Metadata = Mapping[str, MetaValue]

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_KEY_BYTES: Final = 65_535
# Python needs some 300 bytes per key or tensor, a file only about 20: real files stay far below.
MAX_KEYS: Final = 1 << 16
MAX_TENSORS: Final = 1 << 17

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")

# What people download in place of a model, by its first bytes.
_FOREIGN: Final = (
    (b"version https://git-lfs", "a git-LFS pointer; fetch the real file with 'git lfs pull'"),
    (b"<", "an HTML or XML page, probably an error page saved by a download"),
    (b"{", "a JSON document"),
    (b"lmgg", "a GGML file from before GGUF; convert the model again"),
    (b"tjgg", "a GGJT file from before GGUF; convert the model again"),
    (b"PK\x03\x04", "a ZIP archive (a PyTorch checkpoint?)"),
    (b"\x1f\x8b", "gzip-compressed data"),
)


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


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor [ne] lies: `offset` in bytes from the start of the file."""

    name: str
    type: GGMLType
    ne: Shape
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ParsedGGUF:
    """What stands in a file before its tensor data, and where that data begins."""

    metadata: dict[str, MetaValue]
    tensors: dict[str, TensorInfo]
    data_offset: int


@dataclass(frozen=True, slots=True)
class _RawTensor:
    """A tensor entry as written; its offset counts from the start of the data."""

    name: str
    ne: Shape
    type_number: int
    offset: int


class _Cursor:
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


def parse_gguf(data: mmap | bytes, path: str) -> ParsedGGUF:
    """Read the header, metadata and tensor list of a GGUF file.

    Raises: ModelFormatError, UnsupportedError.
    """
    cursor = _Cursor(data, path)
    _check_magic(cursor)
    n_tensors = _count(cursor, "tensor count", MAX_TENSORS, 8 + 4 + 4 + 8)
    n_keys = _count(cursor, "key count", MAX_KEYS, 8 + 1 + 4 + 1)
    metadata, alignment = _read_metadata(cursor, n_keys)
    _refuse_split(metadata, path)
    raw = _read_tensor_list(cursor, n_tensors)
    _refuse_unknown_types(raw, path)
    data_offset = -(-cursor.at // alignment) * alignment
    tensors = [_place(cursor, tensor, data_offset, alignment) for tensor in raw]
    _check_extents(cursor, tensors)
    return ParsedGGUF(metadata, {tensor.name: tensor for tensor in tensors}, data_offset)


def _check_magic(cursor: _Cursor) -> None:
    head = cursor.data[:32]
    if not head.startswith(MAGIC[: len(head)]):
        kind = next((text for start, text in _FOREIGN if head.startswith(start)), None)
        seen = f"this is {kind}" if kind else f"it starts with {head[:4]!r}"
        raise cursor.error(f"not a GGUF file, {seen}; expected {MAGIC!r}")
    cursor.need(24, "header")
    cursor.at = 4
    version = cursor.u32("version")
    if version in VERSIONS:
        return
    if int.from_bytes(version.to_bytes(4, "little"), "big") < 1 << 16:
        raise UnsupportedError(f"{cursor.path}: big-endian GGUF file, expected little endian")
    raise UnsupportedError(f"{cursor.path}: GGUF version {version}, expected 2 or 3")


def _count(cursor: _Cursor, what: str, limit: int, smallest: int) -> int:
    """Read a number of entries, of which each takes at least `smallest` bytes."""
    count = cursor.u64(what)
    possible = min(limit, (cursor.end - cursor.at) // smallest)
    if count > possible:
        raise cursor.error(
            f"{what} {count}: expected at most {possible} in a file of {cursor.end} bytes"
        )
    return count


def _read_metadata(cursor: _Cursor, n_keys: int) -> tuple[dict[str, MetaValue], int]:
    metadata: dict[str, MetaValue] = {}
    alignment = DEFAULT_ALIGNMENT
    for index in range(n_keys):
        key = cursor.string(f"key {index}", MAX_KEY_BYTES)
        if not key:
            raise cursor.error(f"key {index} is empty, expected a name")
        if key in metadata:
            raise cursor.error(f"key '{key}' stands twice, expected once")
        what = f"key '{key}'"
        type_ = _value_type(cursor, what)
        value = _READ_VALUE[type_](cursor, what, type_)
        if key == "general.alignment":
            alignment = _check_alignment(cursor, type_, value)
        metadata[key] = value
    return metadata, alignment


def _value_type(cursor: _Cursor, what: str) -> ValueType:
    number = cursor.u32(f"{what}, type,")
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.error(f"{what}: value type {number}, expected 0 to 12") from None


def _check_alignment(cursor: _Cursor, type_: ValueType, value: MetaValue) -> int:
    if type_ == ValueType.UINT32 and isinstance(value, int) and value.bit_count() == 1:
        return value
    raise cursor.error(
        f"key 'general.alignment': {type_.name} {value!r:.40}, expected a UINT32 power of two"
    )


def _read_scalar(cursor: _Cursor, what: str, type_: ValueType) -> MetaValue:
    layout = _SCALARS[type_][0]
    cursor.need(layout.size, what)
    value: bool | int | float = layout.unpack_from(cursor.data, cursor.at)[0]
    cursor.at += layout.size
    return value


def _read_string(cursor: _Cursor, what: str, type_: ValueType) -> MetaValue:
    return cursor.string(what)


def _read_array(cursor: _Cursor, what: str, type_: ValueType) -> MetaValue:
    element = _value_type(cursor, what)
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


def _read_strings(cursor: _Cursor, what: str, count: int) -> list[str]:
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


_READ_VALUE: Final[dict[ValueType, Callable[[_Cursor, str, ValueType], MetaValue]]] = {
    **dict.fromkeys(_SCALARS, _read_scalar),
    ValueType.STRING: _read_string,
    ValueType.ARRAY: _read_array,
}


def _refuse_split(metadata: Metadata, path: str) -> None:
    count = metadata.get("split.count")
    if isinstance(count, int) and count > 1:
        raise UnsupportedError(
            f"{path}: one part of a model split over {count} files, expected a single file "
            "(join the parts with llama.cpp's 'llama-gguf-split --merge')"
        )


def _read_tensor_list(cursor: _Cursor, n_tensors: int) -> list[_RawTensor]:
    names: set[str] = set()
    tensors: list[_RawTensor] = []
    for index in range(n_tensors):
        name = cursor.string(f"name of tensor {index}", MAX_NAME)
        what = f"tensor '{name}'"
        if not name:
            raise cursor.error(f"tensor {index} has an empty name, expected one")
        if name in names:
            raise cursor.error(f"{what} stands twice, expected once")
        names.add(name)
        n_dims = cursor.u32(f"{what}, dimensions,")
        if n_dims > MAX_DIMS:
            raise cursor.error(f"{what}: {n_dims} dimensions, expected at most {MAX_DIMS}")
        ne = make_shape([cursor.u64(f"{what}, shape,") for _ in range(n_dims)])
        if 0 in ne:
            raise cursor.error(f"{what}: shape {list(ne)}, expected no zero dimension")
        type_number = cursor.u32(f"{what}, type,")
        tensors.append(_RawTensor(name, ne, type_number, cursor.u64(f"{what}, offset,")))
    return tensors


def _refuse_unknown_types(tensors: list[_RawTensor], path: str) -> None:
    """A type without a known size stops the reading; then every type that cannot be used is named
    at once.
    """
    if all(tensor.type_number in TRAITS for tensor in tensors):
        return
    found: dict[str, list[str]] = {}
    for tensor in tensors:
        if tensor.type_number not in MODEL_TYPES:
            found.setdefault(type_label(tensor.type_number), []).append(tensor.name)
    raise UnsupportedError(f"{path}: {describe_types(found)}")


def _place(cursor: _Cursor, raw: _RawTensor, data_offset: int, alignment: int) -> TensorInfo:
    what = f"tensor '{raw.name}'"
    type_ = GGMLType(raw.type_number)
    try:
        row = row_size(type_, raw.ne[0])
    except ValueError as error:
        raise cursor.error(f"{what}: {error}") from None
    if raw.offset % alignment:
        raise cursor.error(f"{what}: offset {raw.offset}, expected a multiple of {alignment}")
    nbytes = row * raw.ne[1] * raw.ne[2] * raw.ne[3]
    return TensorInfo(raw.name, type_, raw.ne, data_offset + raw.offset, nbytes)


def _check_extents(cursor: _Cursor, tensors: list[TensorInfo]) -> None:
    """Every tensor inside the file, no two in one place."""
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    last: TensorInfo | None = None
    for tensor in ordered:
        if last is not None and tensor.offset < last.offset + last.nbytes:
            raise cursor.error(
                f"tensor '{tensor.name}' at byte {tensor.offset} overlaps '{last.name}', which "
                f"ends at byte {last.offset + last.nbytes}"
            )
        last = tensor
    if last is not None and last.offset + last.nbytes > cursor.end:
        whole = last.offset + last.nbytes
        raise cursor.error(
            f"truncated or damaged: {cursor.end} of {whole} bytes; tensor '{last.name}' "
            f"{TRAITS[last.type].name}{list(last.ne)} ends past the end"
        )
