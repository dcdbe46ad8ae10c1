"""Which graph nodes the native core computes, and the steps of each: a table from operation to
emitter.

`accepts` is asked of a verified node and is a pure function of it and of the library; a node that
it refuses runs on the reference kernels. Products stand in `emit_matmul`. Follows the kernels'
demands in `csrc/ops.h`.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from app.ggml.op_params import Params, RopeParams
from app.ggml.ops import GluOp, Op, RopeMode, UnaryOp
from app.ggml.tensor import Tensor
from app.ggml.types import TRAITS, GGMLType, row_size
from app.kernels.cpu.layout import MAX_SOURCES, Kind, TypeSupport
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.step import Ref, Scratch, StepSpec

F32, F16, BF16 = GGMLType.F32, GGMLType.F16, GGMLType.BF16
_HALVES: Final = frozenset({F32, F16, BF16})
_MASKS: Final = frozenset({F32, F16})
_NO_UNARY: Final = frozenset({UnaryOp.SOFTPLUS, UnaryOp.GELU_ERF, UnaryOp.XIELU})


class EmitContext(Protocol):
    """The compiler's side of making steps for one node."""

    @property
    def lib(self) -> NativeLibrary:
        """The native core."""

    @property
    def n_threads(self) -> int:
        """Threads that run the steps."""

    @property
    def index(self) -> int:
        """Index of the node among those that compute."""

    def ref(self, tensor: Tensor) -> Ref:
        """Describe a tensor in plain form."""

    def weight(self, tensor: Tensor) -> Ref:
        """Describe a source that may be grouped, and is from now on if it can be."""

    def add(self, step: StepSpec) -> None:
        """Append a step."""

    def with_scratch(self, step: StepSpec) -> StepSpec:
        """Give a step the scratch that the library says it needs; it is the step's alone."""

    def shared(
        self, key: Hashable, reads: Sequence[Tensor], make: Callable[[], StepSpec | None], size: int
    ) -> Scratch | None:
        """Return the scratch that the step of `make` filled, this time or before while `reads` kept
        their bytes; None when `make` returned None.
        """


@dataclass(frozen=True, slots=True)
class Emitter:
    """How one operation becomes steps, and of which nodes."""

    emit: Callable[[EmitContext, Tensor], None]
    accepts: Callable[[NativeLibrary, Tensor], bool]


def simple(ctx: EmitContext, node: Tensor, kind: Kind, params: Params | None = None) -> StepSpec:
    """Make the step that reads the sources of a node, as many as a kernel knows, and writes the
    node.
    """
    src = tuple(None if s is None else ctx.ref(s) for s in node.src[:MAX_SOURCES])
    return StepSpec(kind, ctx.index, params or node.params, ctx.ref(node), src, node.n_elements)


def _plain(kind: Kind) -> Callable[[EmitContext, Tensor], None]:
    return lambda ctx, node: ctx.add(simple(ctx, node, kind))


def _rows(node: Tensor, *sources: int) -> bool:
    """Whether a node and some of its sources are F32 with rows without gaps."""
    tensors = [node, *(t for i in sources if (t := node.optional(i)) is not None)]
    return all(t.type == F32 and t.has_contiguous_rows for t in tensors)


def _binary(ctx: EmitContext, node: Tensor) -> None:
    step = simple(ctx, node, Kind.BINARY, Params.pack("i", int(node.op)))
    step.src = step.src[:2]
    ctx.add(step)


def _accepts_rows(*sources: int) -> Callable[[NativeLibrary, Tensor], bool]:
    return lambda lib, node: _rows(node, *sources)


def _accepts_unary(lib: NativeLibrary, node: Tensor) -> bool:
    return node.params.i32(0) not in _NO_UNARY and _rows(node, 0)


def _accepts_glu(lib: NativeLibrary, node: Tensor) -> bool:
    whole = node.optional(1) is not None or node.require(0).ne[0] % 2 == 0
    return whole and node.params.i32(0) != GluOp.GEGLU_ERF and _rows(node, 0, 1)


def _accepts_soft_max(lib: NativeLibrary, node: Tensor) -> bool:
    mask = node.optional(1)
    return _rows(node, 0, 2) and (
        mask is None or (mask.type in _MASKS and mask.has_contiguous_rows)
    )


def _rope(ctx: EmitContext, node: Tensor) -> None:
    positions, factors = node.require(1), node.optional(2)
    reads = [positions] if factors is None else [positions, factors]
    refs = [ctx.ref(tensor) for tensor in reads]
    tokens, n_dims = positions.ne[0], RopeParams.unpack(node.params).n_dims

    def make() -> StepSpec:
        src = (None, *refs)
        # A pair of a cosine and a sine costs as much as some fifty elements of anything else.
        return StepSpec(Kind.ROPE_TABLE, ctx.index, node.params, None, src, 25 * tokens * n_dims)

    key = (Op.ROPE, node.params.raw, *refs)
    table = ctx.shared(key, reads, make, 4 * tokens * n_dims)
    src = (ctx.ref(node.require(0)), *refs)
    step = StepSpec(Kind.ROPE, ctx.index, node.params, ctx.ref(node), src, node.n_elements, table)
    step.reads_scratch, step.writes_scratch = True, False
    ctx.add(step)


def _accepts_rope(lib: NativeLibrary, node: Tensor) -> bool:
    rope = RopeParams.unpack(node.params)
    if rope.mode not in (RopeMode.NORM, RopeMode.NEOX):
        return False
    positive = rope.freq_scale > 0 and rope.freq_base > 1 and rope.n_ctx_orig > 0
    if rope.ext_factor != 0.0 and not (positive and rope.beta_fast > 0 and rope.beta_slow > 0):
        return False
    return _rows(node, 0) and node.require(1).is_contiguous


def _set_rows(ctx: EmitContext, node: Tensor) -> None:
    rows, indices = node.require(0), node.require(1)
    src = (ctx.ref(rows), ctx.ref(indices))
    params, work = Params(), rows.n_elements
    ctx.add(StepSpec(Kind.SET_ROWS, ctx.index, params, ctx.ref(node), src, work))


def _accepts_set_rows(lib: NativeLibrary, node: Tensor) -> bool:
    rows, indices = node.require(0), node.require(1)
    if rows.type != F32 and rows.type != node.type:
        return False
    if indices.nb[0] != TRAITS[indices.type].type_size:
        return False
    return bool(lib.type_support(node.type) & TypeSupport.SET_ROWS)


def _get_rows(ctx: EmitContext, node: Tensor) -> None:
    src = (ctx.weight(node.require(0)), ctx.ref(node.require(1)))
    work = node.n_elements
    ctx.add(StepSpec(Kind.GET_ROWS, ctx.index, node.params, ctx.ref(node), src, work))


def _accepts_get_rows(lib: NativeLibrary, node: Tensor) -> bool:
    return node.type == F32 and bool(lib.type_support(node.require(0).type) & TypeSupport.GET_ROWS)


def _attention(ctx: EmitContext, node: Tensor) -> None:
    step = simple(ctx, node, Kind.ATTENTION)
    q, k = node.require(0), node.require(1)
    step.work = q.n_elements * k.ne[1]
    step = ctx.with_scratch(step)
    ctx.add(step)
    join = simple(ctx, node, Kind.ATTENTION_COMBINE)
    join.scratch, join.reads_scratch, join.work = step.scratch, True, 0
    ctx.add(join)


def _accepts_attention(lib: NativeLibrary, node: Tensor) -> bool:
    q, k, v = (node.require(i) for i in range(3))
    known = all(lib.type_support(t.type) & TypeSupport.GET_ROWS for t in (k, v))
    rows = q.has_contiguous_rows and k.has_contiguous_rows and v.has_contiguous_rows
    # Keys that share memory could be more than anybody can wait for.
    apart = all(t.nb[1] >= row_size(t.type, t.ne[0]) for t in (k, v))
    return known and rows and apart and k.ne[1] > 0 and k.ne[0] > 0


def _argsort(ctx: EmitContext, node: Tensor) -> None:
    ctx.add(ctx.with_scratch(simple(ctx, node, Kind.ARGSORT)))


def _accepts_argsort(lib: NativeLibrary, node: Tensor) -> bool:
    x = node.require(0)
    return x.type == F32 and x.has_contiguous_rows and node.has_contiguous_rows


def _copy(ctx: EmitContext, node: Tensor) -> None:
    source = node.require(0)
    size = TRAITS[source.type].type_size if source.type == node.type else 0
    src = (ctx.ref(source),)
    params = Params.pack("i", size)
    ctx.add(StepSpec(Kind.COPY, ctx.index, params, ctx.ref(node), src, node.n_elements))


def _accepts_copy(lib: NativeLibrary, node: Tensor) -> bool:
    source = node.require(0)
    if source.type == node.type:
        return not TRAITS[node.type].is_quantized
    return source.type in _HALVES and node.type in _HALVES


EMITTERS: Final[dict[Op, Emitter]] = {
    **{op: Emitter(_binary, _accepts_rows(0, 1)) for op in (Op.ADD, Op.SUB, Op.MUL, Op.DIV)},
    **{op: Emitter(_copy, _accepts_copy) for op in (Op.DUP, Op.CPY, Op.CONT)},
    Op.SCALE: Emitter(_plain(Kind.SCALE), _accepts_rows(0)),
    Op.NORM: Emitter(_plain(Kind.NORM), _accepts_rows(0)),
    Op.RMS_NORM: Emitter(_plain(Kind.RMS_NORM), _accepts_rows(0)),
    Op.SOFT_MAX: Emitter(_plain(Kind.SOFT_MAX), _accepts_soft_max),
    Op.UNARY: Emitter(_plain(Kind.UNARY), _accepts_unary),
    Op.GLU: Emitter(_plain(Kind.GLU), _accepts_glu),
    Op.ROPE: Emitter(_rope, _accepts_rope),
    Op.SET_ROWS: Emitter(_set_rows, _accepts_set_rows),
    Op.GET_ROWS: Emitter(_get_rows, _accepts_get_rows),
    Op.FLASH_ATTN_EXT: Emitter(_attention, _accepts_attention),
    Op.ADD_ID: Emitter(_plain(Kind.ADD_ID), _accepts_rows(0, 1)),
    Op.ARGSORT: Emitter(_argsort, _accepts_argsort),
    Op.SUM_ROWS: Emitter(_plain(Kind.SUM_ROWS), _accepts_rows(0)),
    Op.CLAMP: Emitter(_plain(Kind.CLAMP), _accepts_rows(0)),
}
