"""Dataclass ↔ packed struct, from a list of field codes.

`messages.py` gives each message such a list; it reads like the protocol's own table. Codes: B, I, Q
as in struct, `24s` bytes, T one tensor, S the ten sources of GET_ALLOC_SIZE. A list shorter than
the dataclass covers an older version, in which the remaining fields keep their defaults.
"""

import dataclasses
import struct
from collections.abc import Callable
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
        self._codes = tuple(codes.split())
        self._struct = struct.Struct("<" + "".join(_STRUCT_CODES.get(c, c) for c in self._codes))
        self._fields = _field_names(make)[: len(self._codes)]

    @property
    def size(self) -> int:
        """Bytes of the packed form."""
        return self._struct.size

    def pack(self, message: M) -> bytes:
        """Pack `message`.

        Raises: LlamaServeError when a value does not fit its field.
        """
        values = [
            _PACK[code](value) if code in _PACK else value
            for code, value in zip(
                self._codes, (getattr(message, name) for name in self._fields), strict=True
            )
        ]
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
        return self._make(
            *(
                _UNPACK[code](value) if code in _UNPACK else value
                for code, value in zip(self._codes, self._struct.unpack(body), strict=True)
            )
        )


def _field_names(make: object) -> tuple[str, ...]:
    if not (isinstance(make, type) and dataclasses.is_dataclass(make)):
        raise TypeError(f"{make!r}: expected a dataclass")
    return tuple(field.name for field in dataclasses.fields(make))


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
