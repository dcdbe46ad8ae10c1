"""What an operation demands of its parameters and of the layout of its sources, beyond the shapes
of `app.ggml.shapes`.

`app.ggml.verify` applies these tables to every node; kernels may rely on them. They follow the
constructors of ggml.c and the assertions of ggml-cpu at llama.cpp b11434. Which element types an
operation takes differs from hardware to hardware and is asked of the kernels.
"""

import math
from collections.abc import Callable
from typing import Final

from app.errors import GraphError, UnsupportedError
from app.ggml.op_params import AttentionParams, RopeParams
from app.ggml.ops import GluOp, Op, RopeMode, UnaryOp
from app.ggml.tensor import Tensor

ROPE_MODES: Final = {int(mode): mode.name.lower() for mode in RopeMode}

# Operations whose result may be a view of a source (the in-place variants), and which source.
IN_PLACE_OF: Final[dict[Op, int]] = {
    **dict.fromkeys(
        (
            Op.DUP,
            Op.ADD,
            Op.ADD1,
            Op.SUB,
            Op.MUL,
            Op.DIV,
            Op.SQR,
            Op.SQRT,
            Op.LOG,
            Op.SIN,
            Op.COS,
            Op.NORM,
            Op.RMS_NORM,
            Op.L2_NORM,
            Op.SCALE,
            Op.CLAMP,
            Op.DIAG_MASK_INF,
            Op.LEAKY_RELU,
            Op.DIAG_MASK_ZERO,
            Op.SOFT_MAX,
            Op.ROPE,
            Op.UNARY,
            Op.ADD_REL_POS,
            Op.ACC,
            Op.SET,
            Op.GROUP_NORM,
            Op.FILL,
        ),
        0,
    ),
    Op.CPY: 1,
    Op.SET_ROWS: 2,
}

# Sources whose rows must be without gaps.
_ROWS: Final[dict[Op, tuple[int, ...]]] = {
    Op.ADD: (0,),
    Op.ADD1: (0,),
    Op.ADD_ID: (0, 1),
    Op.SUB: (0,),
    Op.MUL: (0,),
    Op.DIV: (0,),
    Op.SUM_ROWS: (0,),
    Op.MEAN: (0,),
    Op.ARGMAX: (0,),
    Op.ARGSORT: (0,),
    Op.RMS_NORM: (0,),
    Op.CLAMP: (0,),
    Op.UNARY: (0,),
    Op.LEAKY_RELU: (0,),
    Op.MUL_MAT: (0, 1),
    Op.MUL_MAT_ID: (0, 1),
    Op.GET_ROWS: (0,),
    Op.SET_ROWS: (0, 2),
    Op.ROPE: (0,),
    Op.ROPE_BACK: (0,),
    Op.FLASH_ATTN_EXT: (0, 1, 2),
    Op.REPEAT: (0,),
    Op.ACC: (1,),
    Op.SET: (1,),
    Op.CUMSUM: (0,),
    Op.GROUP_NORM: (0,),
    Op.ROLL: (0,),
    Op.OUT_PROD: (0,),
    Op.TIMESTEP_EMBEDDING: (0,),
}

# Sources that may have gaps between rows, but nowhere else.
_EVEN_ROWS: Final[dict[Op, tuple[int, ...]]] = {Op.SCALE: (0,), Op.GLU: (0, 1)}

# Sources that must be without any gap.
_GAPLESS: Final[dict[Op, tuple[int, ...]]] = {
    Op.RESHAPE: (0,),
    Op.SOFT_MAX: (0, 1),
    Op.FLASH_ATTN_EXT: (3,),
}


def check_layouts(node: Tensor) -> None:
    """Check that the sources of `node` have the strides that its operation needs.

    Raises: GraphError.
    """
    op = node.op
    for i in _ROWS.get(op, ()):
        source = node.optional(i)
        if source is not None and not source.has_contiguous_rows:
            raise _layout_error(i, source, "rows without gaps")
    for i in _EVEN_ROWS.get(op, ()):
        source = node.optional(i)
        if source is not None and not source.is_contiguous_above(1):
            raise _layout_error(i, source, "evenly spaced rows without gaps")
    for i in _GAPLESS.get(op, ()):
        source = node.optional(i)
        if source is not None and not source.is_contiguous:
            raise _layout_error(i, source, "no gaps")


def check_params(node: Tensor) -> None:
    """Check the parameters of `node`.

    Raises: GraphError, UnsupportedError for a function or mode that is not known.
    """
    rule = _PARAMS.get(node.op)
    if rule is not None:
        rule(node)


def _layout_error(index: int, source: Tensor, want: str) -> GraphError:
    return GraphError(
        f"source {index} '{source.name}' {list(source.ne)} has strides {list(source.nb)}, "
        f"expected {want}"
    )


def _finite(what: str, value: float, least: float = -math.inf) -> None:
    if not (math.isfinite(value) and value >= least):
        limit = "" if least == -math.inf else f" of at least {least:g}"
        raise GraphError(f"{what} is {value}, expected a finite number{limit}")


def _eps(node: Tensor) -> None:
    _finite("eps", node.params.f32(0), 0.0)


def _scale(node: Tensor) -> None:
    _finite("scale", node.params.f32(0))
    # An infinite one makes a mask of everything.
    if math.isnan(node.params.f32(1)):
        raise GraphError("bias is nan, expected a number")


def _slope(node: Tensor) -> None:
    _finite("negative slope", node.params.f32(0))


def _clamp(node: Tensor) -> None:
    low, high = node.params.f32(0), node.params.f32(1)
    if not low <= high:
        raise GraphError(f"limits {low} and {high}, expected an ordered pair")


def _sort_order(node: Tensor) -> None:
    order = node.params.i32(0)
    if order not in (0, 1):
        raise GraphError(f"sort order {order}, expected 0 (rising) or 1 (falling)")


def _n_past(node: Tensor) -> None:
    n_past = node.params.i32(0)
    if n_past < 0:
        raise GraphError(f"n_past is {n_past}, expected at least 0")


def _unary(node: Tensor) -> None:
    number = node.params.i32(0)
    if number not in _UNARY_OPS:
        raise UnsupportedError(f"function number {number}, expected 0 to {max(_UNARY_OPS)}")


def _glu(node: Tensor) -> None:
    number, swapped = node.params.i32(0), node.params.i32(1)
    if number not in _GLU_OPS:
        raise UnsupportedError(f"function number {number}, expected 0 to {max(_GLU_OPS)}")
    if swapped not in (0, 1):
        raise GraphError(f"the swap flag is {swapped}, expected 0 or 1")
    if number in (GluOp.SWIGLU_OAI, GluOp.SWIGLU_CLAMP):
        _finite("alpha", node.params.f32(2))
        _finite("limit", node.params.f32(3))


def _attention(node: Tensor) -> None:
    params = AttentionParams.unpack(node.params)
    is_flash = node.op == Op.FLASH_ATTN_EXT
    _finite("scale", params.scale)
    _finite("max_bias", params.max_bias, 0.0)
    if is_flash:
        _finite("logit_softcap", params.logit_softcap)
    if params.max_bias > 0 and node.optional(3 if is_flash else 1) is None:
        raise GraphError(f"max_bias is {params.max_bias} without a mask, expected one")


def _rope(node: Tensor) -> None:
    rope = RopeParams.unpack(node.params)
    if rope.mode not in ROPE_MODES:
        known = ", ".join(f"{mode} ({name})" for mode, name in ROPE_MODES.items())
        raise UnsupportedError(f"rotation mode {rope.mode}, expected {known}")
    _finite("freq_base", rope.freq_base, 0.0)
    _finite("freq_scale", rope.freq_scale)
    _finite("ext_factor", rope.ext_factor)
    _finite("attn_factor", rope.attn_factor)
    _finite("beta_fast", rope.beta_fast)
    _finite("beta_slow", rope.beta_slow)
    if rope.freq_base == 0.0:
        raise GraphError("freq_base is 0, expected a positive number")
    sections = rope.sections
    if rope.mode & RopeMode.MROPE and not (min(sections) >= 0 and any(sections[:3])):
        raise GraphError(f"sections {sections}, expected none negative and one of three positive")


_UNARY_OPS: Final = frozenset(map(int, UnaryOp))
_GLU_OPS: Final = frozenset(map(int, GluOp))

_PARAMS: Final[dict[Op, Callable[[Tensor], None]]] = {
    Op.NORM: _eps,
    Op.RMS_NORM: _eps,
    Op.L2_NORM: _eps,
    Op.SCALE: _scale,
    Op.LEAKY_RELU: _slope,
    Op.CLAMP: _clamp,
    Op.ARGSORT: _sort_order,
    Op.DIAG_MASK_INF: _n_past,
    Op.DIAG_MASK_ZERO: _n_past,
    Op.UNARY: _unary,
    Op.GLU: _glu,
    Op.SOFT_MAX: _attention,
    Op.FLASH_ATTN_EXT: _attention,
    Op.ROPE: _rope,
    Op.ROPE_BACK: _rope,
}
