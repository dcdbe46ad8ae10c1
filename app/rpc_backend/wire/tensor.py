"""The 296-byte rpc_tensor: how a tensor is described on the wire.

`WireTensor` is a named tuple of plain numbers because a graph holds 1,400 of them and each is made
and read once: the struct module does that faster than column-wise numpy followed by object
building. `WireTensors` reads only those that somebody asks for. Nothing is checked here but what
the field widths demand; `to_tensor` checks what a tensor needs in order to exist. Layout: ggml-rpc
at llama.cpp b11434.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from app.errors import GraphError
from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.tensor import MAX_NAME, MAX_SRC, Buffer, Shape, Tensor, TensorFlag
from app.ggml.types import TRAITS, GGMLType

_TENSOR: Final = struct.Struct("<QIQ4I4II64si10QQQQ64si")
TENSOR_BYTES: Final = _TENSOR.size
_RECORD: Final = np.dtype([("id", "<u8"), ("rest", f"V{TENSOR_BYTES - 8}")])
_U32: Final = 2**32

_TYPES: Final = {int(type_): type_ for type_ in TRAITS}
_OPS: Final = {int(op): op for op in Op}
_FLAG_MASK: Final = int(sum(TensorFlag))
_FLAGS: Final = tuple(TensorFlag(bits) for bits in range(_FLAG_MASK + 1))
_NO_SOURCES: Final = (0,) * MAX_SRC


class Place(NamedTuple):
    """Where a tensor lies on one worker: buffer handle and address; zeros when it is not there."""

    handle: int
    address: int


NOWHERE: Final = Place(0, 0)
PlaceOf = Callable[[Tensor], Place]


class WireTensor(NamedTuple):
    """The fields of rpc_tensor, in order; ids, handle and address are 0 for "none"."""

    id: int
    type: int
    buffer: int
    ne: Shape
    nb: Shape
    op: int
    params: bytes
    flags: int
    src: tuple[int, ...]
    view_src: int
    view_offs: int
    data: int
    name: bytes
    use_count: int

    @property
    def label(self) -> str:
        """The name, fit for a message."""
        return self.name.decode("utf-8", "replace")


NULL_TENSOR: Final = WireTensor(
    0, 0, 0, (0, 0, 0, 0), (0, 0, 0, 0), 0, bytes(64), 0, _NO_SOURCES, 0, 0, 0, b"", 0
)
"""Stands for an absent source in GET_ALLOC_SIZE."""


def pack_tensor(tensor: WireTensor) -> bytes:
    """Pack into 296 bytes; every field must fit its width."""
    return _TENSOR.pack(
        *tensor[:3],
        *tensor.ne,
        *tensor.nb,
        tensor.op,
        tensor.params,
        tensor.flags,
        *tensor.src,
        *tensor[9:],
    )


def unpack_tensors(body: bytes | bytearray | memoryview) -> list[WireTensor]:
    """Unpack a whole number of descriptions."""
    return [_named(fields) for fields in _TENSOR.iter_unpack(body)]


def _named(f: tuple[Any, ...]) -> WireTensor:
    return WireTensor(
        f[0],
        f[1],
        f[2],
        f[3:7],
        f[7:11],
        f[11],
        f[12],
        f[13],
        f[14:24],
        f[24],
        f[25],
        f[26],
        f[27].partition(b"\0")[0],
        f[28],
    )


class WireTensors(Sequence[WireTensor]):
    """Descriptions as they came, each unpacked when it is asked for: of the 900 that a stock client
    sends with a graph, the graph may read three.
    """

    def __init__(self, body: bytes | bytearray | memoryview, start: int = 0) -> None:
        """Take what `body`, which must not change any more, holds from byte `start` on: a whole
        number of descriptions.
        """
        self._body = body
        self._starts = range(start, len(body), TENSOR_BYTES)
        self._records = np.frombuffer(body, _RECORD, offset=start)

    @property
    def ids(self) -> npt.NDArray[np.uint64]:
        """The ids of all, in order."""
        ids: npt.NDArray[np.uint64] = self._records["id"]
        return ids

    def raw(self, places: npt.NDArray[np.intp]) -> bytes:
        """The bytes of those at `places`."""
        return self._records[places].tobytes()

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[WireTensor]:
        return iter(unpack_tensors(memoryview(self._body)[self._starts.start :]))

    @overload
    def __getitem__(self, index: int) -> WireTensor: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[WireTensor, ...]: ...
    def __getitem__(self, index: int | slice) -> WireTensor | tuple[WireTensor, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        return _named(_TENSOR.unpack_from(self._body, self._starts[index]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))


def to_wire(
    tensor: Tensor,
    place: Place,
    *,
    key: int = 1,
    src: tuple[int, ...] = _NO_SOURCES,
    view_src: int = 0,
    flags: int = 0,
    use_count: int = 0,
) -> WireTensor:
    """Describe a tensor that lies at `place`; `key`, `src` and `view_src` are ids that the caller
    chose, `flags` come on top of the tensor's own.

    Raises: GraphError when a size or a stride does not fit into 32 bits.
    """
    if max(tensor.ne) >= _U32 or max(tensor.nb) >= _U32:
        raise GraphError(
            f"tensor '{tensor.name}' {list(tensor.ne)} with strides {list(tensor.nb)}: "
            "expected sizes and strides below 4 GiB, more does not fit into the RPC protocol"
        )
    return WireTensor(
        key,
        tensor.type,
        place.handle,
        tensor.ne,
        tensor.nb,
        tensor.op,
        tensor.params.raw,
        tensor.flags | flags,
        src,
        view_src,
        tensor.view_offs,
        place.address,
        tensor.name.encode("utf-8", "replace")[:MAX_NAME],
        use_count,
    )


def to_tensor(wire: WireTensor, buffer: Buffer | None = None, offset: int = 0) -> Tensor:
    """Make a tensor [ne] without sources from a peer's description.

    Raises: GraphError for an unknown type or operation, or a row that is not whole blocks.
    """
    type_ = _TYPES.get(wire.type)
    if type_ is None:
        raise GraphError(f"tensor '{wire.label}': unknown type {wire.type}")
    op = _OPS.get(wire.op)
    if op is None:
        raise GraphError(f"tensor '{wire.label}': unknown operation {wire.op}")
    _check_row(wire, type_)
    return Tensor(
        type_,
        wire.ne,
        wire.nb,
        op,
        Params(wire.params),
        view_offs=wire.view_offs,
        flags=_FLAGS[wire.flags & _FLAG_MASK],
        name=wire.label,
        buffer=buffer,
        offset=offset,
    )


def _check_row(wire: WireTensor, type_: GGMLType) -> None:
    block = TRAITS[type_].block_size
    if block > 1 and wire.ne[0] % block:
        raise GraphError(
            f"tensor '{wire.label}': row of {wire.ne[0]} elements of {type_.name}: "
            f"expected a multiple of {block}"
        )
