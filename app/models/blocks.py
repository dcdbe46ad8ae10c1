"""The parts that all architectures are put together from, one small function each.

Architectures call them with the name of a weight up to its suffix ("blk.0.attn_q") and the name
that llama.cpp gives the result; a bias is added wherever the file has one. Nodes stand in the
order of llama.cpp's graphs (llama-graph.cpp, b11434). Attention is in `app.models.attention`.
"""

from typing import Final

from app.ggml.ops import GluOp, UnaryOp
from app.ggml.tensor import Tensor
from app.models.base import StageContext

GLU_NAMES: Final[dict[GluOp, str]] = {GluOp.SWIGLU: "ffn_swiglu", GluOp.GEGLU: "ffn_geglu"}


def label(tensor: Tensor, name: str, il: int | None = None) -> Tensor:
    """Name a node, with its layer after a dash, and return it."""
    tensor.name = name if il is None else f"{name}-{il}"
    return tensor


def norm(context: StageContext, x: Tensor, weight: str, name: str, il: int | None = None) -> Tensor:
    """Root-mean-square norm of each row, times a weight [ne0]."""
    normed = label(context.graph.rms_norm(x, context.hparams.norm_eps), "norm", il)
    return label(context.graph.mul(normed, context.weights[f"{weight}.weight"]), name, il)


def layer_norm(
    context: StageContext, x: Tensor, weight: str, name: str, il: int | None = None
) -> Tensor:
    """Norm of each row by mean and variance, times a weight [ne0], plus a bias if there is one."""
    normed = label(context.graph.norm(x, context.hparams.norm_eps), "norm", il)
    scaled = label(context.graph.mul(normed, context.weights[f"{weight}.weight"]), "norm_w", il)
    bias = context.weights.get(f"{weight}.bias")
    return label(scaled if bias is None else context.graph.add(scaled, bias), name, il)


def linear(
    context: StageContext, x: Tensor, weight: str, name: str, il: int | None = None
) -> Tensor:
    """Matrix [n_in, n_out] times x [n_in, n] → [n_out, n], plus the bias if there is one."""
    result = label(context.graph.mul_mat(context.weights[f"{weight}.weight"], x), name, il)
    bias = context.weights.get(f"{weight}.bias")
    return result if bias is None else label(context.graph.add(result, bias), name, il)


def feed_forward(context: StageContext, il: int, x: Tensor, function: GluOp) -> Tensor:
    """down(function(gate(x)) * up(x)), x [n_embd, n]."""
    up = linear(context, x, f"blk.{il}.ffn_up", "ffn_up", il)
    gate = linear(context, x, f"blk.{il}.ffn_gate", "ffn_gate", il)
    hidden = label(context.graph.glu_split(gate, up, function), GLU_NAMES[function], il)
    return linear(context, hidden, f"blk.{il}.ffn_down", "ffn_out", il)


def pick_outputs(
    context: StageContext, il: int, attn: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor]:
    """Keep the rows whose logits are wanted: in the last layer, after attention, so that its
    feed-forward and everything behind it, on whatever device, work on those alone.
    """
    rows = context.inputs.output_rows
    if rows is None or il != context.hparams.n_layer - 1:
        return attn, residual
    return context.graph.get_rows(attn, rows), context.graph.get_rows(residual, rows)


def lm_head(context: StageContext, x: Tensor) -> Tensor:
    """Final norm, output matrix and soft cap: [n_embd, n] → logits [n_vocab, n]."""
    cap = context.hparams.final_logit_softcap
    normed = norm(context, x, "output_norm", "result_norm")
    logits = linear(context, normed, "output", "result_output")
    if cap:
        logits = soft_cap(context, logits, cap)
    return label(logits, "result_output")


def soft_cap(context: StageContext, x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap)."""
    graph = context.graph
    return graph.scale(graph.unary(graph.scale(x, 1.0 / cap), UnaryOp.TANH), cap)
