"""Hand-made GGUF bytes: just enough to write wrong ones that no real writer would."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass


def string(text: str | bytes) -> bytes:
    """A length and the text."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, type_: int, value: bytes) -> bytes:
    """One metadata entry."""
    return string(key) + struct.pack("<I", type_) + value


def text_entry(key: str, value: str) -> bytes:
    """A metadata entry that holds a string."""
    return entry(key, 8, string(value))


def u32_entry(key: str, value: int) -> bytes:
    """A metadata entry that holds an unsigned number."""
    return entry(key, 4, struct.pack("<I", value))


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor entry exactly as written."""

    name: str
    ne: Sequence[int] = (4,)
    type: int = 0
    offset: int = 0

    def pack(self) -> bytes:
        """The entry's bytes."""
        dims = struct.pack(f"<I{len(self.ne)}Q", len(self.ne), *self.ne)
        return string(self.name) + dims + struct.pack("<IQ", self.type, self.offset)


def file_bytes(
    entries: Sequence[bytes] = (),
    tensors: Sequence[RawTensor] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    n_tensors: int | None = None,
    n_keys: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; counts may lie."""
    head = struct.pack(
        "<4sIQQ",
        b"GGUF",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(entries) if n_keys is None else n_keys,
    )
    head += b"".join(entries) + b"".join(tensor.pack() for tensor in tensors)
    return head + bytes(-len(head) % alignment) + data
