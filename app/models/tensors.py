"""Checks the tensors of a file against those that an architecture reads.

A model whose output matrix is absent uses its token embedding instead (tied weights). A tensor that
nobody reads is refused like a missing one, since the file then means another computation.
"""

from collections.abc import Mapping, Sequence

from app.errors import ModelFormatError
from app.ggml.gguf_file import GGUFFile, TensorInfo
from app.ggml.tensor import make_shape
from app.ggml.types import GGMLType
from app.models.base import TensorSpec

TOKEN_EMBD = "token_embd.weight"
OUTPUT = "output.weight"
MAX_SHOWN = 20


def check_tensors(gguf: GGUFFile, specs: Sequence[TensorSpec]) -> None:
    """Check that a file has the tensors of `specs` and no others.

    Raises: ModelFormatError naming every tensor that is missing, unknown, or of a wrong shape or
    type.
    """
    problems = [text for spec in specs if (text := _problem(gguf.tensors, spec))]
    known = {spec.name for spec in specs}
    problems += [
        f"tensor '{name}' is unknown to architecture '{gguf.architecture}'"
        for name in gguf.tensors
        if name not in known
    ]
    if problems:
        rest = len(problems) - MAX_SHOWN
        more = [f"and {rest} more"] if rest > 0 else []
        raise ModelFormatError("; ".join(problems[:MAX_SHOWN] + more))


def _problem(tensors: Mapping[str, TensorInfo], spec: TensorSpec) -> str | None:
    found = tensors.get(spec.name)
    if found is None:
        is_missed = spec.required and spec.instead not in tensors
        want = f"expected shape {list(spec.ne)}"
        return f"tensor '{spec.name}' is missing: {want}" if is_missed else None
    if make_shape(found.ne) != make_shape(spec.ne):
        return f"tensor '{spec.name}' has shape {list(found.ne)}: expected {list(spec.ne)}"
    if len(spec.ne) == 1 and found.type != GGMLType.F32:
        return f"tensor '{spec.name}' has type {found.type.name}: expected F32"
    return None


def output_weight_name(gguf: GGUFFile) -> str:
    """Return the name of the matrix that makes logits: the token embedding when it is tied."""
    return OUTPUT if OUTPUT in gguf.tensors else TOKEN_EMBD
