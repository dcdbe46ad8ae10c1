"""What the rules on shapes share: how they name what does not fit.

`app.ggml.shapes` has the rules of the core operations; those of recurrent models and of images are
modules of their own. Rules follow the constructors of ggml.c at llama.cpp b11434.
"""

from collections.abc import Callable

from app.errors import GraphError
from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.tensor import Shape, Tensor
from app.ggml.types import GGMLType

Sources = tuple[Tensor | None, ...]
Inferred = tuple[GGMLType, Shape]
InferFn = Callable[[Op, Sources, Params], Inferred]


def source(op: Op, sources: Sources, index: int) -> Tensor:
    """Return source `index`.

    Raises: GraphError when it is absent.
    """
    tensor = sources[index] if index < len(sources) else None
    if tensor is None:
        raise GraphError(f"{op.name}: source {index} is missing")
    return tensor


def optional(sources: Sources, index: int) -> Tensor | None:
    """Return source `index`, or None when it is absent."""
    return sources[index] if index < len(sources) else None


def check(ok: bool, op: Op, *tensors: Tensor, want: str) -> None:
    """Raise a GraphError that shows the types and shapes of `tensors`, unless `ok`."""
    if not ok:
        shapes = ", ".join(f"{t.type.name}{list(t.ne)}" for t in tensors)
        raise GraphError(f"{op.name}: sources {shapes}: expected {want}")


def check_param(ok: bool, op: Op, name: str, value: float, want: str) -> None:
    """Raise a GraphError that names a parameter and its value, unless `ok`."""
    if not ok:
        raise GraphError(f"{op.name}: {name} is {value}, expected {want}")


def check_types(op: Op, allowed: frozenset[GGMLType], *tensors: Tensor) -> None:
    """Raise a GraphError unless every tensor is of an allowed type."""
    names = ", ".join(sorted(t.name for t in allowed))
    check(all(t.type in allowed for t in tensors), op, *tensors, want=f"types {names}")


def check_gapless(op: Op, *tensors: Tensor) -> None:
    """Raise a GraphError unless every tensor is without gaps."""
    for tensor in tensors:
        if not tensor.is_contiguous:
            raise GraphError(
                f"{op.name}: source '{tensor.name}' {list(tensor.ne)} has strides "
                f"{list(tensor.nb)}, expected no gaps"
            )


def can_repeat(small: Shape, large: Shape) -> bool:
    """Whether `small` fills `large` by whole repetitions (ggml_can_repeat)."""
    if 0 in small:
        return 0 in large
    return not (
        large[0] % small[0] or large[1] % small[1] or large[2] % small[2] or large[3] % small[3]
    )
