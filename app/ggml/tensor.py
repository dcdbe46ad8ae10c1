"""The node of a compute graph: a typed, strided array that an operation makes from its sources.

Shapes and strides are in ggml order, fastest first: `ne` counts elements, `nb` counts bytes (of a
whole block for `nb[0]`). A tensor gets its memory from `buffer` and `offset`: weights and caches
when they are loaded, the others from the memory planner. A view shares the memory of `view_src`
from byte `view_offs` on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Protocol

from app.errors import GraphError
from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.types import TRAITS, GGMLType, row_size

MAX_DIMS = 4
MAX_SRC = 10
MAX_NAME = 63

Shape = tuple[int, int, int, int]


class TensorFlag(IntFlag):
    """ggml's tensor flags."""

    NONE = 0
    INPUT = 1
    OUTPUT = 2
    PARAM = 4
    LOSS = 8
    COMPUTE = 16


class Buffer(Protocol):
    """A run of bytes on some device; tensors point into it by offset."""

    @property
    def size(self) -> int:
        """Bytes of the buffer."""


@dataclass(slots=True, eq=False)
class Tensor:
    """One tensor of a graph; identity is the object itself."""

    type: GGMLType
    ne: Shape
    nb: Shape
    op: Op = Op.NONE
    params: Params = field(default_factory=Params)
    # Left out of repr: a graph's worth of sources would stand behind each tensor.
    src: tuple["Tensor | None", ...] = field(default=(), repr=False)
    view_src: "Tensor | None" = field(default=None, repr=False)
    view_offs: int = 0
    flags: TensorFlag = TensorFlag.NONE
    name: str = ""
    buffer: Buffer | None = None
    offset: int = 0

    @property
    def n_elements(self) -> int:
        """Number of elements."""
        return self.ne[0] * self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element, gaps included (ggml_nbytes)."""
        ne, nb = self.ne, self.nb
        if 0 in ne:
            return 0
        traits = TRAITS[self.type]
        if traits.block_size == 1:
            span = traits.type_size + (ne[0] - 1) * nb[0]
        else:
            span = ne[0] * nb[0] // traits.block_size
        return span + (ne[1] - 1) * nb[1] + (ne[2] - 1) * nb[2] + (ne[3] - 1) * nb[3]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def is_contiguous(self) -> bool:
        """Whether elements follow one another without gaps in ggml order; the stride of a dimension
        of one element does not count (ggml_is_contiguous).
        """
        return self.is_contiguous_above(0)

    def is_contiguous_above(self, dim: int) -> bool:
        """Whether there are no gaps but after rows of dimensions 1 to `dim`
        (ggml_is_contiguous_1, _2).
        """
        if not self.has_contiguous_rows:
            return False
        traits = TRAITS[self.type]
        expected = traits.type_size * (self.ne[0] // traits.block_size)
        for i in (1, 2, 3):
            if i <= dim:
                expected = self.ne[i] * self.nb[i]
                continue
            if self.ne[i] != 1 and self.nb[i] != expected:
                return False
            expected *= self.ne[i]
        return True

    @property
    def has_contiguous_rows(self) -> bool:
        """Whether the elements of a row follow one another (ggml_is_contiguous_rows)."""
        traits = TRAITS[self.type]
        return self.nb[0] == traits.type_size or self.ne[0] == traits.block_size

    def require(self, index: int) -> "Tensor":
        """Return source `index`.

        Raises: GraphError when it is absent.
        """
        tensor = self.src[index] if index < len(self.src) else None
        if tensor is None:
            raise GraphError(f"{self.op.name} '{self.name}': source {index} is missing")
        return tensor

    def optional(self, index: int) -> "Tensor | None":
        """Return source `index`, or None when it is absent."""
        return self.src[index] if index < len(self.src) else None


def make_shape(ne: Sequence[int]) -> Shape:
    """Pad `ne` with ones to four dimensions.

    Raises: GraphError for more than four dimensions or a negative one.
    """
    if len(ne) > MAX_DIMS or any(n < 0 for n in ne):
        raise GraphError(f"shape {list(ne)}: expected up to {MAX_DIMS} dimensions, none negative")
    padded = tuple(ne) + (1,) * (MAX_DIMS - len(ne))
    return (padded[0], padded[1], padded[2], padded[3])


def contiguous_strides(type_: GGMLType, ne: Shape) -> Shape:
    """Strides in bytes of a tensor without gaps.

    Raises: GraphError when a row is not a whole number of blocks.
    """
    try:
        nb1 = row_size(type_, ne[0])
    except ValueError as error:
        raise GraphError(str(error)) from None
    nb2 = nb1 * ne[1]
    return (TRAITS[type_].type_size, nb1, nb2, nb2 * ne[2])


def new_tensor(type_: GGMLType, ne: Sequence[int], name: str = "") -> Tensor:
    """Make a leaf tensor [ne] without gaps and without memory."""
    shape = make_shape(ne)
    return Tensor(type_, shape, contiguous_strides(type_, shape), name=name)
