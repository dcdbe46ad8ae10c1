"""Runs one operation on a device and hands what it read and wrote to an oracle.

A `Source` says what stands in a leaf and how it lies in memory; `run` makes a graph of one node,
places it, fills it with seeded values and returns the node's float64 result beside the values that
the oracle starts from. Arrays are in torch order (ne3, ne2, ne1, ne0).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import gguf
import numpy as np
import numpy.typing as npt

from app.devices.base import BufferUsage, Device
from app.ggml.graph import Graph, next_uid
from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.shapes import infer
from app.ggml.tensor import Shape, Tensor, contiguous_strides, make_shape
from app.ggml.types import TRAITS, GGMLType

Array = npt.NDArray[np.float64]
Rng = np.random.Generator
Fill = Callable[[Rng, tuple[int, ...]], npt.NDArray[np.generic]]

_NUMPY: dict[GGMLType, npt.DTypeLike] = {
    GGMLType.F32: np.float32,
    GGMLType.F16: np.float16,
    GGMLType.F64: np.float64,
    GGMLType.I8: np.int8,
    GGMLType.I16: np.int16,
    GGMLType.I32: np.int32,
    GGMLType.I64: np.int64,
}
_GUARD = 64
IN_ORDER = (0, 1, 2, 3)

# Operations whose result is a source: which one.
OVERWRITTEN = {Op.SET_ROWS: 2, Op.CPY: 1}


def normal(rng: Rng, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """Standard normal numbers."""
    return rng.standard_normal(shape)


def below(count: int) -> Fill:
    """Integers 0…count - 1, distinct along a row where that is possible."""

    def fill(rng: Rng, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
        if shape[-1] > count:
            return rng.integers(0, count, shape)
        rows = [rng.permutation(count)[: shape[-1]] for _ in range(prod(shape[:-1]))]
        return np.array(rows).reshape(shape)

    return fill


def mask(rng: Rng, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """Zeros, some finite numbers and minus infinity, with at least one key in every row."""
    values = np.where(rng.random(shape) < 0.4, -np.inf, 0.0)
    values = np.where(rng.random(shape) < 0.2, -rng.random(shape), values)
    values[..., 0] = 0.0
    return values


def masked_rows(rng: Rng, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """As `mask`, with every second row masked altogether."""
    values = np.array(mask(rng, shape))
    values[..., ::2, :] = -np.inf
    return values


@dataclass(frozen=True, slots=True)
class Source:
    """One source [ne] of a type. `permute` stores it with its axes in another order, `gap` leaves
    that many unused elements (blocks, for a quantised type) after each row.
    """

    ne: tuple[int, ...]
    type: GGMLType = GGMLType.F32
    fill: Fill = normal
    permute: tuple[int, int, int, int] | None = None
    gap: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """One operation with its sources, parameters and the error that it may make."""

    name: str
    op: Op
    sources: tuple[Source | None, ...]
    params: Params = field(default_factory=Params)
    ne: tuple[int, ...] | None = None  # where the shape does not follow from the sources
    type: GGMLType | None = None
    inplace: int | None = None  # the result takes the memory of this source
    nmse: float = 1e-12  # float32 arithmetic on values of order 1: (1e-6)^2
    exact: bool = False
    permute: tuple[int, int, int, int] | None = None  # the result's axes as they lie in memory


def nmse(got: Array, want: Array) -> float:
    """Squared error relative to the squared size of what is wanted."""
    size = float(np.sum(want * want))
    return float(np.sum((got - want) ** 2)) / (size or 1.0)


def encode(type_: GGMLType, values: npt.NDArray[np.generic]) -> bytes:
    """Write values (…, n) as ggml would have them in memory."""
    if type_ in _NUMPY:
        return values.astype(_NUMPY[type_]).tobytes()
    kind = gguf.GGMLQuantizationType(int(type_))
    return gguf.quants.quantize(values.astype(np.float32), kind).tobytes()


def random_blocks(rng: Rng, type_: GGMLType, count: int) -> bytes:
    """Random blocks of a quantised type: small finite scales, values about zero."""
    traits = TRAITS[type_]
    blocks = rng.integers(0, 256, (count, traits.type_size), dtype=np.uint8)
    d = rng.random((count, 1)) * 0.02 + 0.01
    columns = np.hstack([d, d * MINIMUM_OF_SCALE.get(type_, 0.0)])
    scales = columns.astype(np.float16).view(np.uint8)
    for at, column in SCALE_BYTES[type_]:
        blocks[:, at : at + 2] = scales[:, 2 * column : 2 * column + 2]
    if type_ == GGMLType.MXFP4:
        blocks[:, 0] = rng.integers(118, 124, count)
    return blocks.tobytes()


SCALE_BYTES: dict[GGMLType, tuple[tuple[int, int], ...]] = {
    GGMLType.Q4_0: ((0, 0),),
    GGMLType.Q4_1: ((0, 0), (2, 1)),
    GGMLType.Q5_0: ((0, 0),),
    GGMLType.Q5_1: ((0, 0), (2, 1)),
    GGMLType.Q8_0: ((0, 0),),
    GGMLType.Q2_K: ((80, 0), (82, 1)),
    GGMLType.Q3_K: ((108, 0),),
    GGMLType.Q4_K: ((0, 0), (2, 1)),
    GGMLType.Q5_K: ((0, 0), (2, 1)),
    GGMLType.Q6_K: ((208, 0),),
    GGMLType.IQ4_NL: ((0, 0),),
    GGMLType.IQ4_XS: ((0, 0),),
    GGMLType.MXFP4: (),
}


# What a block adds (or in K types subtracts) so that its values lie on both sides of zero.
MINIMUM_OF_SCALE: dict[GGMLType, float] = {
    GGMLType.Q4_1: -7.5,
    GGMLType.Q5_1: -15.5,
    GGMLType.Q2_K: 1.5,
    GGMLType.Q4_K: 7.5,
    GGMLType.Q5_K: 15.5,
}


def decode(type_: GGMLType, ne: Shape, data: bytes) -> Array:
    """Read gapless memory as float64 (ne3, ne2, ne1, ne0)."""
    if type_ in _NUMPY:
        return np.frombuffer(data, _NUMPY[type_]).astype(np.float64).reshape(ne[::-1])
    kind = gguf.GGMLQuantizationType(int(type_))
    rows = np.frombuffer(data, np.uint8).reshape(ne[3] * ne[2] * ne[1], -1)
    return gguf.quants.dequantize(rows, kind).astype(np.float64).reshape(ne[::-1])


@dataclass(slots=True)
class Leaf:
    """A leaf in memory, the view of it that the node reads, its bytes and its values."""

    stored: Tensor
    seen: Tensor
    data: bytes
    values: Array


def make_leaf(rng: Rng, source: Source) -> Leaf:
    """Lay a source out in memory."""
    ne = make_shape(source.ne)
    axes = source.permute or IN_ORDER
    inner = make_shape([ne[axis] for axis in axes])
    block = TRAITS[source.type].block_size
    whole = make_shape([inner[0] + source.gap * block, *inner[1:]])
    stored = Tensor(source.type, whole, contiguous_strides(source.type, whole), name="leaf")
    if block > 1 or source.type == GGMLType.BF16:
        count = prod(whole) // block
        data = (
            random_blocks(rng, source.type, count)
            if block > 1
            else encode(source.type, source.fill(rng, whole[::-1]))
        )
    else:
        data = encode(source.type, source.fill(rng, whole[::-1]))
    values = decode(source.type, whole, data)[..., : inner[0]]
    nb = _strides(axes, stored.nb)
    seen = Tensor(source.type, ne, nb, Op.VIEW, Params(), (stored,), stored)
    order = [3 - axis for axis in reversed(axes)]
    return Leaf(stored, seen, data, values.transpose(np.argsort(order)))


def _strides(axes: tuple[int, int, int, int], stored: Shape) -> Shape:
    """Strides of a tensor whose axes lie in memory in the order `axes`."""
    nb = [0] * 4
    for i, axis in enumerate(axes):
        nb[axis] = stored[i]
    return (nb[0], nb[1], nb[2], nb[3])


def run(device: Device, case: Case, seed: int = 0) -> tuple[Array, list[Array | None], Tensor]:
    """Run one case; return the result, what its sources held before, and the node."""
    rng = np.random.default_rng(seed)
    leaves = [None if s is None else make_leaf(rng, s) for s in case.sources]
    node = make_node(case, [None if leaf is None else leaf.seen for leaf in leaves])
    stored = [leaf.stored for leaf in leaves if leaf is not None]
    place(
        device,
        [*stored, *([] if node.view_src is not None or case.inplace is not None else [node])],
    )
    for leaf in leaves:
        if leaf is not None:
            _follow(leaf.seen, leaf.stored)
            device.set_tensor(leaf.stored, leaf.data)
    if node.view_src is not None:
        _follow(node, node.view_src)
    if case.inplace is not None:
        _follow(node, stored[case.inplace])
    views = [leaf.seen for leaf in leaves if leaf is not None]
    device.compute(Graph([*views, node], next_uid()))
    values = [None if leaf is None else leaf.values for leaf in leaves]
    return read(device, node), values, node


def make_node(case: Case, sources: Sequence[Tensor | None]) -> Tensor:
    """Make the node of a case, without memory of its own where it overwrites a source."""
    overwritten = OVERWRITTEN.get(case.op)
    target = None if overwritten is None else sources[overwritten]
    if case.op == Op.CPY:
        assert target is not None
        type_, ne = target.type, target.ne
    elif case.ne is not None:
        first = next(s for s in sources if s is not None)
        type_, ne = case.type or first.type, make_shape(case.ne)
    else:
        type_, ne = infer(case.op, tuple(sources), case.params)
    axes = case.permute or IN_ORDER
    nb = _strides(axes, contiguous_strides(type_, make_shape([ne[axis] for axis in axes])))
    node = Tensor(type_, ne, nb, case.op, case.params, tuple(sources))
    node.name = case.name
    if target is not None:
        node.view_src, node.nb = target.view_src, target.nb
    return node


def place(device: Device, tensors: Sequence[Tensor]) -> None:
    """Give each tensor memory in one buffer, with unused bytes between them."""
    offset = _GUARD
    for tensor in tensors:
        tensor.offset = offset
        offset += -(-tensor.nbytes // _GUARD) * _GUARD + _GUARD
    buffer = device.alloc(offset, BufferUsage.ANY)
    for tensor in tensors:
        tensor.buffer = buffer


def _follow(view: Tensor, root: Tensor) -> None:
    view.buffer, view.offset = root.buffer, root.offset


def read(device: Device, tensor: Tensor) -> Array:
    """Read a tensor, whatever its strides, as float64 (ne3, ne2, ne1, ne0)."""
    return read_bytes(tensor, device.get_tensor(tensor, 0, tensor.nbytes).result())


def read_bytes(tensor: Tensor, data: bytes) -> Array:
    """Read the bytes of a tensor, gaps included."""
    if tensor.is_contiguous:
        return decode(tensor.type, tensor.ne, data)
    traits = TRAITS[tensor.type]
    raw = np.frombuffer(data, np.uint8)
    shape = (*tensor.ne[:0:-1], tensor.ne[0] // traits.block_size, traits.type_size)
    strides = (*tensor.nb[:0:-1], tensor.nb[0], 1)
    dense = np.lib.stride_tricks.as_strided(raw, shape, strides)
    return decode(tensor.type, tensor.ne, dense.tobytes())
