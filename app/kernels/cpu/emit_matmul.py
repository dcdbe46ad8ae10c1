"""MUL_MAT and MUL_MAT_ID as native steps, and which weights are worth grouping.

Few columns of a plain vector form go through MATVEC: activations are quantised once per source and
shared by all weights that read it; weights that are not quantised read the rows themselves.
Everything else goes through MATMUL, whose activations are converted once likewise where the machine
multiplies in bf16. Experts read quantised activations whatever their number, since each has few of
them. Follows `csrc/matvec.h`, `csrc/matmul.h` and `csrc/experts.h`.
"""

from dataclasses import replace
from typing import Final

from app.ggml.op_params import Params
from app.ggml.tensor import Tensor
from app.ggml.types import TRAITS, GGMLType
from app.kernels.cpu.emit import F32, EmitContext, Emitter
from app.kernels.cpu.layout import Kind, TypeSupport
from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.step import Ref, StepSpec

MAX_COLUMNS: Final = 8
GROUP_ROWS: Final = 16
_ACT_ELEMENTS: Final = 32
# Weights whose activations are converted to two parts of bf16 instead of one (csrc/dequant.h).
_IN_TWO_PARTS: Final = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16})


def is_groupable(lib: NativeLibrary, tensor: Tensor) -> bool:
    """Whether a tensor by its shape and type can be a grouped weight: one matrix, or several of
    whole groups.
    """
    several = tensor.ne[2] * tensor.ne[3] != 1
    return (
        TRAITS[tensor.type].is_quantized
        and bool(lib.type_support(tensor.type) & TypeSupport.MATVEC)
        and tensor.is_contiguous
        and tensor.ne[1] >= GROUP_ROWS
        and not (several and tensor.ne[1] % GROUP_ROWS)
    )


def _mul_mat(ctx: EmitContext, node: Tensor) -> None:
    a, b = node.require(0), node.require(1)
    weight = ctx.weight(a)
    planes = b.ne[2] * b.ne[3]
    if planes == 1 and b.ne[1] <= MAX_COLUMNS and _has_matvec(ctx.lib, a, weight):
        _matvec(ctx, node, weight)
    else:
        _matmul(ctx, node, weight)


def _has_matvec(lib: NativeLibrary, a: Tensor, weight: Ref) -> bool:
    if not lib.type_support(a.type) & TypeSupport.MATVEC:
        return False
    return weight.layout != 0 if TRAITS[a.type].is_quantized else a.has_contiguous_rows


def _matvec(ctx: EmitContext, node: Tensor, weight: Ref) -> None:
    a, b = node.require(0), node.require(1)
    x = _quantized(ctx, b) if TRAITS[a.type].is_quantized else ctx.ref(b)
    ctx.add(StepSpec(Kind.MATVEC, ctx.index, Params(), ctx.ref(node), (weight, x), a.n_elements))


def _quantized(ctx: EmitContext, rows: Tensor) -> Ref:
    """Describe the quantised form of rows, made now unless that was done for a node before."""
    x = ctx.ref(rows)

    def make() -> StepSpec:
        return StepSpec(Kind.QUANTIZE, ctx.index, Params(), None, (x,), rows.n_elements)

    size = ctx.lib.quantize_bytes(rows.ne[0], rows.n_rows)
    quantized = ctx.shared((Kind.QUANTIZE, x), [rows], make, size)
    assert quantized is not None
    return replace(x, address=0, scratch=quantized)


def _matmul(ctx: EmitContext, node: Tensor, weight: Ref) -> None:
    a, b = node.require(0), node.require(1)
    x = ctx.ref(b)
    step = StepSpec(
        Kind.CONVERT_BF16, ctx.index, Params.pack("i", int(a.type)), None, (x,), b.n_elements
    )
    size = ctx.lib.scratch_bytes(step.pack(None), ctx.n_threads)
    converted = None
    if size:
        key = (Kind.CONVERT_BF16, a.type in _IN_TWO_PARTS, x)
        converted = ctx.shared(key, [b], lambda: step, size)
    if converted is not None:
        x = Ref(0, x.nbytes, x.ne, x.nb, x.type, scratch=converted)
    params = Params.pack("i", int(converted is not None))
    work = a.n_elements * b.ne[1]
    product = StepSpec(Kind.MATMUL, ctx.index, params, ctx.ref(node), (weight, x), work)
    ctx.add(ctx.with_scratch(product))


def _accepts(lib: NativeLibrary, node: Tensor) -> bool:
    a, b = node.require(0), node.require(1)
    known = bool(lib.type_support(a.type) & TypeSupport.MATMUL)
    return known and b.type == F32 and node.type == F32 and b.has_contiguous_rows and a.ne[0] > 0


def _mul_mat_id(ctx: EmitContext, node: Tensor) -> None:
    experts, indices = node.require(0), node.require(2)
    src = (ctx.weight(experts), _quantized(ctx, node.require(1)), ctx.ref(indices))
    work = experts.ne[0] * node.n_elements
    step = StepSpec(Kind.MUL_MAT_ID, ctx.index, Params(), ctx.ref(node), src, work)
    ctx.add(ctx.with_scratch(step))


def _accepts_experts(lib: NativeLibrary, node: Tensor) -> bool:
    experts, rows, indices = (node.require(i) for i in range(3))
    f32 = rows.type == F32 and node.type == F32
    apart = rows.has_contiguous_rows and node.has_contiguous_rows and experts.ne[0] > 0
    # Their number goes into 32 bits.
    few = indices.n_elements < 1 << 31
    return f32 and apart and few and is_groupable(lib, experts)


MUL_MAT: Final = Emitter(_mul_mat, _accepts)
MUL_MAT_ID: Final = Emitter(_mul_mat_id, _accepts_experts)
