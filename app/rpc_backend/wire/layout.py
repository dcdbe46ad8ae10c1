"""Dataclass ↔ packed struct, from a list of field codes.

`commands.py` gives each message such a list; it reads like the protocol's own table. Codes: B, I, Q
as in struct, `24s` bytes, T one tensor, S the ten sources of GET_ALLOC_SIZE. A list shorter than
the dataclass covers an older version, in which the remaining fields keep their defaults.
"""

import dataclasses
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Generic, TypeVar

from app.errors import LlamaServeError
from app.ggml.tensor import MAX_SRC
from app.rpc_backend.errors import RemoteProtocolError
from app.rpc_backend.wire.tensor import (
    TENSOR_BYTES,
    WireTensor,
    pack_tensor,
    unpack_tensors,
)

M = TypeVar("M")
Body = bytes | bytearray | memoryview

_STRUCT_CODES: Final = {"T": f"{TENSOR_BYTES}s", "S": f"{MAX_SRC * TENSOR_BYTES}s"}


class Layout(Generic[M]):
    """Packs and unpacks messages of one class."""

    def __init__(self, make: Callable[..., M], codes: str = "") -> None:
        self._make = make
        parts = codes.split()
        self._struct = struct.Struct("<" + "".join(_STRUCT_CODES.get(c, c) for c in parts))
        self._fields = _field_names(make)[: len(parts)]
        self._special = tuple((i, code) for i, code in enumerate(parts) if code in _PACK)

    @property
    def size(self) -> int:
        """Bytes of the packed form."""
        return self._struct.size

    def pack(self, message: M) -> bytes:
        """Pack `message`.

        Raises: LlamaServeError when a value does not fit its field.
        """
        values = [getattr(message, name) for name in self._fields]
        for i, code in self._special:
            values[i] = _PACK[code](values[i])
        try:
            return self._struct.pack(*values)
        except struct.error as error:
            raise LlamaServeError(f"{message!r}: {error}") from None

    def unpack(self, body: Body) -> M:
        """Unpack exactly `size` bytes.

        Raises: RemoteProtocolError for another length.
        """
        if len(body) != self._struct.size:
            raise RemoteProtocolError(f"body of {len(body)} bytes: expected {self._struct.size}")
        values = list(self._struct.unpack(body))
        for i, code in self._special:
            values[i] = _UNPACK[code](values[i])
        return self._make(*values)


def _field_names(make: object) -> tuple[str, ...]:
    if not (isinstance(make, type) and dataclasses.is_dataclass(make)):
        raise TypeError(f"{make!r}: expected a dataclass")
    return tuple(field.name for field in dataclasses.fields(make))


# A decode step writes to the same few tensors each time.
@lru_cache(maxsize=256)
def _unpack_one(raw: bytes) -> WireTensor:
    return unpack_tensors(raw)[0]


def _unpack_sources(raw: bytes) -> tuple[WireTensor, ...]:
    return tuple(unpack_tensors(raw))


def _pack_sources(tensors: tuple[WireTensor, ...]) -> bytes:
    return b"".join(map(pack_tensor, tensors))


_PACK: Final[dict[str, Callable[..., bytes]]] = {"T": pack_tensor, "S": _pack_sources}
_UNPACK: Final[dict[str, Callable[[bytes], WireTensor | tuple[WireTensor, ...]]]] = {
    "T": _unpack_one,
    "S": _unpack_sources,
}
