"""GLU: function(gate) * up, from two sources or from the two halves of one.

With one source the gate is the first half of the row, or the second when parameter 1 ("swapped")
is set. The gate is activated in scratch memory, so the result may be the memory of either source.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from app.ggml.op_params import Params
from app.ggml.ops import GluOp, Op
from app.ggml.tensor import Tensor
from app.kernels.table import Kernel, Steps
from app.kernels.torch_ref.context import FLOATS, Context, as_float, types_in
from app.kernels.torch_ref.elementwise import gelu_quick

_ACTIVATIONS: dict[GluOp, Callable[[torch.Tensor], torch.Tensor]] = {
    GluOp.REGLU: functional.relu,
    GluOp.GEGLU: partial(functional.gelu, approximate="tanh"),
    GluOp.SWIGLU: functional.silu,
    GluOp.GEGLU_ERF: functional.gelu,
    GluOp.GEGLU_QUICK: gelu_quick,
}


def _swiglu_oai(gate: torch.Tensor, up: torch.Tensor, params: Params) -> torch.Tensor:
    """Both sides clamped; the gate's sigmoid has a slope and the other side is raised by 1."""
    alpha, limit = params.f32(2), params.f32(3)
    x = gate.clamp(max=limit)
    return x * torch.sigmoid(alpha * x) * (up.clamp(-limit, limit) + 1.0)


def _swiglu_clamp(gate: torch.Tensor, up: torch.Tensor, params: Params) -> torch.Tensor:
    limit = params.f32(3)
    return functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


_WITH_PARAMS = {GluOp.SWIGLU_OAI: _swiglu_oai, GluOp.SWIGLU_CLAMP: _swiglu_clamp}


def _halves(ctx: Context, node: Tensor) -> tuple[torch.Tensor, torch.Tensor, Steps]:
    """Return gate and up as F32."""
    first, steps = as_float(ctx, node.require(0))
    if node.optional(1) is not None:
        second, more = as_float(ctx, node.require(1))
        return first, second, [*steps, *more]
    n = node.ne[0]
    low, high = first[..., :n], first[..., n : 2 * n]
    return (high, low, steps) if node.params.i32(1) else (low, high, steps)


def _glu(ctx: Context, node: Tensor) -> Steps:
    kind = GluOp(node.params.i32(0))
    gate, up, steps = _halves(ctx, node)
    result = ctx.view(node)
    if kind in _WITH_PARAMS:
        function = _WITH_PARAMS[kind]
        return [*steps, lambda: result.copy_(function(gate, up, node.params))]
    activated = ctx.scratch(gate.shape)
    if kind == GluOp.SWIGLU:
        activate = partial(torch.ops.aten.silu.out, gate, out=activated)
    elif kind == GluOp.GEGLU:
        activate = partial(torch.ops.aten.gelu.out, gate, approximate="tanh", out=activated)
    else:
        function_of_gate = _ACTIVATIONS[kind]
        return [*steps, lambda: torch.mul(function_of_gate(gate), up, out=result)]
    return [*steps, activate, partial(torch.mul, activated, up, out=result)]


def _supported(node: Tensor) -> str | None:
    kind = node.params.i32(0)
    if kind not in GluOp._value2member_map_:
        return f"function {kind}, expected one of {', '.join(f.name for f in GluOp)}"
    return types_in(node, FLOATS, 0, 1)


KERNELS: dict[Op, Kernel[Context]] = {Op.GLU: Kernel(_glu, _supported)}
