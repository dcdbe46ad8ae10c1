"""GGUF bytes → metadata and tensor list; every count, length and offset is held against the bytes
that are really there before anything is allocated for it.

`app.ggml.gguf_file` calls it with a mapped file. Follows the GGUF specification (versions 2 and 3,
little endian) and the limits of gguf.cpp at llama.cpp b11434. Whatever the bytes are, the outcome
is a result or a ModelFormatError or UnsupportedError that names the file and the place.
"""

from dataclasses import dataclass
from mmap import mmap
from typing import Final

from app.errors import UnsupportedError
from app.ggml.gguf_cursor import Cursor, Metadata, MetaValue, ValueType, read_type, read_value
from app.ggml.tensor import MAX_DIMS, MAX_NAME, Shape, make_shape
from app.ggml.type_names import describe_types, type_label
from app.ggml.types import MODEL_TYPES, TRAITS, GGMLType, row_size

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_KEY_BYTES: Final = 65_535
# Python needs some 300 bytes per key or tensor, a file only about 20: real files stay far below.
MAX_KEYS: Final = 1 << 16
MAX_TENSORS: Final = 1 << 17

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


def parse_gguf(data: mmap | bytes, path: str) -> ParsedGGUF:
    """Read the header, metadata and tensor list of a GGUF file.

    Raises: ModelFormatError, UnsupportedError.
    """
    cursor = Cursor(data, path)
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


def _check_magic(cursor: Cursor) -> None:
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


def _count(cursor: Cursor, what: str, limit: int, smallest: int) -> int:
    """Read a number of entries, of which each takes at least `smallest` bytes."""
    count = cursor.u64(what)
    possible = min(limit, (cursor.end - cursor.at) // smallest)
    if count > possible:
        raise cursor.error(
            f"{what} {count}: expected at most {possible} in a file of {cursor.end} bytes"
        )
    return count


def _read_metadata(cursor: Cursor, n_keys: int) -> tuple[dict[str, MetaValue], int]:
    metadata: dict[str, MetaValue] = {}
    alignment = DEFAULT_ALIGNMENT
    for index in range(n_keys):
        key = cursor.string(f"key {index}", MAX_KEY_BYTES)
        if not key:
            raise cursor.error(f"key {index} is empty, expected a name")
        if key in metadata:
            raise cursor.error(f"key '{key}' stands twice, expected once")
        what = f"key '{key}'"
        type_ = read_type(cursor, what)
        value = read_value(cursor, type_, what)
        if key == "general.alignment":
            alignment = _check_alignment(cursor, type_, value)
        metadata[key] = value
    return metadata, alignment


def _check_alignment(cursor: Cursor, type_: ValueType, value: MetaValue) -> int:
    if type_ == ValueType.UINT32 and isinstance(value, int) and value.bit_count() == 1:
        return value
    raise cursor.error(
        f"key 'general.alignment': {type_.name} {value!r:.40}, expected a UINT32 power of two"
    )


def _refuse_split(metadata: Metadata, path: str) -> None:
    count = metadata.get("split.count")
    if isinstance(count, int) and count > 1:
        raise UnsupportedError(
            f"{path}: one part of a model split over {count} files, expected a single file "
            "(join the parts with llama.cpp's 'llama-gguf-split --merge')"
        )


def _read_tensor_list(cursor: Cursor, n_tensors: int) -> list[_RawTensor]:
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


def _place(cursor: Cursor, raw: _RawTensor, data_offset: int, alignment: int) -> TensorInfo:
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


def _check_extents(cursor: Cursor, tensors: list[TensorInfo]) -> None:
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
