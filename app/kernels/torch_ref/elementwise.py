"""Operations that treat each element on its own: arithmetic of two tensors, SCALE, CLAMP, UNARY
and the older one-function operations.

The second source of ADD, SUB, MUL and DIV repeats to the size of the first. The result may be the
memory of a source: every step reads an element before it writes the same one.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from app.ggml.op_params import Params
from app.ggml.ops import Op, UnaryOp
from app.ggml.tensor import Tensor
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.bits import round_half_away
from app.kernels.torch_ref.context import FLOATS, Context, as_float, repeat_views, types_in

_BINARY: dict[Op, Callable[..., torch.Tensor]] = {
    Op.ADD: torch.add,
    Op.SUB: torch.sub,
    Op.MUL: torch.mul,
    Op.DIV: torch.div,
}


def _binary(ctx: Context, node: Tensor) -> Steps:
    a, result = ctx.view(node.require(0)), ctx.view(node)
    b, shape = repeat_views(ctx.view(node.require(1)), a)
    return [partial(_BINARY[node.op], a.view(shape), b, out=result.view(shape))]


def _add1(ctx: Context, node: Tensor) -> Steps:
    b = ctx.view(node.require(1)).as_strided((1,), (1,))
    return [partial(torch.add, ctx.view(node.require(0)), b, out=ctx.view(node))]


def _scale(ctx: Context, node: Tensor) -> Steps:
    factor, bias = node.params.f32(0), node.params.f32(1)
    source, result = ctx.view(node.require(0)), ctx.view(node)
    steps: Steps = [partial(torch.mul, source, factor, out=result)]
    if bias != 0.0:
        steps.append(partial(result.add_, bias))
    return steps


def _clamp(ctx: Context, node: Tensor) -> Steps:
    low, high = node.params.f32(0), node.params.f32(1)
    return [partial(torch.clamp, ctx.view(node.require(0)), low, high, out=ctx.view(node))]


def _leaky_relu(ctx: Context, node: Tensor) -> Steps:
    slope = node.params.f32(0)
    result = ctx.view(node)
    source = ctx.view(node.require(0))
    return [lambda: result.copy_(functional.leaky_relu(source, slope))]


def gelu_quick(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


UNARY: dict[UnaryOp, Callable[[torch.Tensor], torch.Tensor]] = {
    UnaryOp.ABS: torch.abs,
    UnaryOp.SGN: torch.sign,
    UnaryOp.NEG: torch.neg,
    UnaryOp.STEP: lambda x: (x > 0).to(x.dtype),
    UnaryOp.TANH: torch.tanh,
    UnaryOp.ELU: functional.elu,
    UnaryOp.RELU: functional.relu,
    UnaryOp.SIGMOID: torch.sigmoid,
    UnaryOp.GELU: partial(functional.gelu, approximate="tanh"),
    UnaryOp.GELU_QUICK: gelu_quick,
    UnaryOp.SILU: functional.silu,
    UnaryOp.HARDSWISH: lambda x: x * ((x + 3) / 6).clamp(0, 1),
    UnaryOp.HARDSIGMOID: lambda x: ((x + 3) / 6).clamp(0, 1),
    UnaryOp.EXP: torch.exp,
    UnaryOp.EXPM1: torch.expm1,
    UnaryOp.SOFTPLUS: functional.softplus,
    UnaryOp.GELU_ERF: functional.gelu,
    UnaryOp.FLOOR: torch.floor,
    UnaryOp.CEIL: torch.ceil,
    UnaryOp.ROUND: round_half_away,
    UnaryOp.TRUNC: torch.trunc,
}

_AS_FUNCTION: dict[Op, Callable[[torch.Tensor], torch.Tensor]] = {
    Op.SQR: torch.square,
    Op.SQRT: torch.sqrt,
    Op.LOG: torch.log,
    Op.SIN: torch.sin,
    Op.COS: torch.cos,
}


def _apply(function: Callable[[torch.Tensor], torch.Tensor], ctx: Context, node: Tensor) -> Steps:
    source, steps = as_float(ctx, node.require(0))
    result = ctx.view(node)
    return [*steps, lambda: result.copy_(function(source))]


def _xielu(params: Params, x: torch.Tensor) -> torch.Tensor:
    """A parabola above zero and an exponential below, both plus beta * x."""
    negative, positive, beta, eps = (params.f32(i) for i in (1, 2, 3, 4))
    below = (torch.expm1(x.clamp(max=eps)) - x) * negative
    return torch.where(x > 0, positive * x * x, below) + beta * x


def _unary(ctx: Context, node: Tensor) -> Steps:
    if node.params.i32(0) == UnaryOp.XIELU:
        return _apply(partial(_xielu, node.params), ctx, node)
    return _apply(UNARY[UnaryOp(node.params.i32(0))], ctx, node)


def _function(ctx: Context, node: Tensor) -> Steps:
    return _apply(_AS_FUNCTION[node.op], ctx, node)


def _unary_supported(node: Tensor) -> str | None:
    kind = node.params.i32(0)
    if kind not in UnaryOp._value2member_map_:
        return f"function {kind}, expected one of {', '.join(f.name for f in UnaryOp)}"
    return _one(node)


def _one(node: Tensor) -> str | None:
    return types_in(node, FLOATS, 0)


def _two(node: Tensor) -> str | None:
    return types_in(node, FLOATS, 0, 1)


def _add1_supported(node: Tensor) -> str | None:
    if node.require(1).n_elements != 1:
        return f"second source of {node.require(1).n_elements} elements, expected one"
    return _two(node)


KERNELS: dict[Op, Kernel[Context]] = {
    **{op: Kernel(_binary, _two) for op in _BINARY},
    **{op: Kernel(_function, _one) for op in _AS_FUNCTION},
    Op.ADD1: Kernel(_add1, _add1_supported),
    Op.SCALE: Kernel(_scale, _one),
    Op.CLAMP: Kernel(_clamp, _one),
    Op.LEAKY_RELU: Kernel(_leaky_relu, _one),
    Op.UNARY: Kernel(_unary, _unary_supported),
}
