"""What a reference kernel may ask for while its node is compiled, and helpers that many need.

The executor implements `Context`. Views are in torch order: a tensor [ne0, ne1, ne2, ne3] is a view
(ne3, ne2, ne1, ne0) straight into its buffer, so a step that writes into the view of a node has
written the node. A node without elements is never compiled. A compile function must not read
values: memory is filled later, and the steps run many times. Arithmetic is float32 throughout.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import torch

from app.ggml.tensor import Tensor
from app.ggml.types import TRAITS, GGMLType
from app.kernels.table import Steps
from app.kernels.torch_ref import dequant

T = TypeVar("T")

DTYPES: dict[GGMLType, torch.dtype] = {
    GGMLType.F32: torch.float32,
    GGMLType.F16: torch.float16,
    GGMLType.BF16: torch.bfloat16,
    GGMLType.F64: torch.float64,
    GGMLType.I8: torch.int8,
    GGMLType.I16: torch.int16,
    GGMLType.I32: torch.int32,
    GGMLType.I64: torch.int64,
}
FLOATS = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16})
READABLE = FLOATS | dequant.TYPES

# Most matrices of a node whose kernel makes steps for each: a client's memory holds many more.
MAX_PLANES = 1 << 16


class Weight(Protocol):
    """A tensor that is converted to float32 at most once while its bytes stay the same."""

    def value(self) -> torch.Tensor | None:
        """Return F32 (ne3, ne2, ne1, ne0) without gaps, or None when there is no room for it."""


class Context(Protocol):
    """The executor's side of compiling one node."""

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""

    def view(self, tensor: Tensor) -> torch.Tensor:
        """Return the elements (ne3, ne2, ne1, ne0) of a tensor that is not quantised."""

    def blocks(self, tensor: Tensor) -> torch.Tensor:
        """Return the bytes (ne3, ne2, ne1, n_blocks, type_size) of a tensor."""

    def scratch(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return memory that is this node's until it has run."""

    def once(
        self, key: Hashable, reads: Sequence[Tensor], make: Callable[[], tuple[T, Steps]]
    ) -> T:
        """Return a value that is computed once per run and shared by all nodes that ask under
        `key`, until a node writes to what it `reads`; `make` takes its memory from `kept`.
        """

    def kept(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return memory that lasts for the whole run."""

    def weight(self, tensor: Tensor) -> Weight | None:
        """Return a float32 copy that outlives the run, or None when this graph writes to it."""

    def constant(self, values: Sequence[float] | Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a small tensor of fixed values on the device."""


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors start at the same byte."""
    return a.buffer is b.buffer and a.offset == b.offset


def as_float(ctx: Context, tensor: Tensor) -> tuple[torch.Tensor, Steps]:
    """Return F32 (ne3, ne2, ne1, ne0) of any readable tensor, and the steps that fill it."""
    if tensor.type == GGMLType.F32:
        return ctx.view(tensor), []
    shape = tensor.ne[::-1]
    result = ctx.scratch(shape)
    if tensor.type in DTYPES:
        return result, [partial(result.copy_, ctx.view(tensor))]
    return result, [partial(dequant.into, tensor.type, ctx.blocks(tensor), result)]


def reshaped(ctx: Context, view: torch.Tensor, shape: Sequence[int]) -> tuple[torch.Tensor, Steps]:
    """Return `view` under another shape; where strides forbid it, a copy and the step that makes
    it.
    """
    try:
        return view.view(*shape), []
    except RuntimeError:
        copy = ctx.scratch(view.shape, view.dtype)
        return copy.view(*shape), [partial(copy.copy_, view)]


def target(
    ctx: Context, view: torch.Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, Steps]:
    """Return where to write a result of `shape` and `dtype` so that it ends up in `view`, and the
    steps that bring it there.
    """
    if view.dtype == dtype:
        try:
            return view.view(*shape), []
        except RuntimeError:
            pass
    copy = ctx.scratch(view.shape, dtype)
    return copy.view(*shape), [partial(view.copy_, copy)]


def repeat_views(small: torch.Tensor, large: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Return `small` so that it broadcasts against `large.view(shape)`, and that shape.

    ggml repeats whole tensors along each dimension; torch only stretches size 1. A dimension that
    repeats r > 1 times is split in two, (r, n), on the large side and (1, n) on the small one.
    """
    small_shape: list[int] = []
    large_shape: list[int] = []
    for n, m in zip(small.shape, large.shape, strict=True):
        if n not in (1, m):
            small_shape += [1, n]
            large_shape += [m // n, n]
        else:
            small_shape.append(n)
            large_shape.append(m)
    return small.view(*small_shape), large_shape


def too_many_planes(node: Tensor) -> str | None:
    """Return why a node may not have so many matrices [ne0, ne1], or None."""
    n = node.ne[2] * node.ne[3]
    return None if n <= MAX_PLANES else f"{n} matrices, expected up to {MAX_PLANES}"


def types_in(node: Tensor, allowed: frozenset[GGMLType], *sources: int) -> str | None:
    """Return why the types of a node and of the named sources are not all `allowed`, or None."""
    tensors = [node] + [t for i in sources if (t := node.optional(i)) is not None]
    for tensor in tensors:
        if tensor.type not in allowed:
            names = ", ".join(sorted(TRAITS[t].name for t in allowed))
            return f"type {TRAITS[tensor.type].name} of '{tensor.name}', expected one of {names}"
    return None
