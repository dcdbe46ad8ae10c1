"""Self-attention over the KV cache: projections, rotation, cache write, attention, output matrix.

Keys and values of the step are written to the cells named in the inputs, then queries attend to the
first `n_kv` cells of the layer's cache through a view; nodes stand in that order. Caches hold one
row per cell, values like keys, with and without flash attention; without it values are turned by a
view and a copy. Both ways accumulate in F32 (ggml's precision parameter), as llama.cpp asks for.
"""

from typing import Final

from app.errors import GraphError, UnsupportedError
from app.ggml.op_params import Params
from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.ggml.types import TRAITS, row_size
from app.models.base import StageContext
from app.models.blocks import label, linear, norm, soft_cap

PREC_F32: Final = 10  # GGML_PREC_F32


def attention(context: StageContext, il: int, x: Tensor) -> Tensor:
    """Attend from the normed hidden state [n_embd, n_tokens]; the result has the same shape.

    Raises: GraphError, UnsupportedError.
    """
    queries = _project(context, il, x)
    attend = _flash_attention if context.flash_attn else _plain_attention
    result = label(attend(context, il, queries), "kqv_out", il)
    return linear(context, result, f"blk.{il}.attn_output", "attn_out", il)


def _project(context: StageContext, il: int, x: Tensor) -> Tensor:
    """Write the keys and values of x and return its queries [d, n_head, n_tokens]."""
    graph, hparams = context.graph, context.hparams
    cells = context.inputs.cache(hparams.is_swa[il]).cells
    q, keys, v = _queries_keys_values(context, il, x)
    if hparams.rope:
        q = _rotate(context, il, q, hparams.n_head[il], "q")
        k = _rotate(context, il, keys, hparams.n_head_kv[il], "k")
        keys = graph.reshape(k, hparams.n_embd_k_gqa(il), x.ne[1])
    else:
        q = _heads(context, q, hparams.n_head[il])
    label(graph.set_rows(context.k_cache[il], keys, cells), "cache_k_set", il)
    label(graph.set_rows(context.v_cache[il], v, cells), "cache_v_set", il)
    return q


def _queries_keys_values(context: StageContext, il: int, x: Tensor) -> tuple[Tensor, ...]:
    """Q, K and V of x, one row per token: three products, or parts of the rows of one."""
    if f"blk.{il}.attn_qkv.weight" not in context.weights:
        return tuple(linear(context, x, f"blk.{il}.attn_{c}", f"{c.upper()}cur", il) for c in "qkv")
    graph, hparams = context.graph, context.hparams
    joint = linear(context, x, f"blk.{il}.attn_qkv", "wqkv", il)
    n_q = hparams.n_embd_head_k * hparams.n_head[il]
    parts, offset = [], 0
    for n in (n_q, hparams.n_embd_k_gqa(il), hparams.n_embd_v_gqa(il)):
        parts.append(graph.view(joint, (n, x.ne[1]), (joint.nb[1],), offset))
        offset += row_size(joint.type, n)
    return tuple(parts)


def _heads(context: StageContext, x: Tensor, n_head: int) -> Tensor:
    """Split rows [d * n_head, n] into heads [d, n_head, n]."""
    d, n = context.hparams.n_embd_head_k, x.ne[1]
    if x.is_contiguous:
        return context.graph.reshape(x, d, n_head, n)
    return context.graph.view(x, (d, n_head, n), (row_size(x.type, d), x.nb[1]))


def _rotate(context: StageContext, il: int, x: Tensor, n_head: int, which: str) -> Tensor:
    """Split rows into heads, norm each head if the file says so, and rotate by position."""
    positions = context.inputs.positions
    assert positions is not None, "a stage with layers has positions"
    name = f"{which.upper()}cur"
    heads = _heads(context, x, n_head)
    if f"blk.{il}.attn_{which}_norm.weight" in context.weights:
        heads = norm(context, heads, f"blk.{il}.attn_{which}_norm", f"{name}_normed", il)
    factors = context.weights.get("rope_freqs.weight")
    rope = context.hparams.rope[il]
    return label(context.graph.rope(heads, positions, factors, rope), name, il)


def _cached(context: StageContext, cache: Tensor, d: int, n_head: int, n_kv: int) -> Tensor:
    """Look at the first n_kv cells of a cache [d * n_head, n_cells] as [d, n_kv, n_head]."""
    if cache.ne[0] != d * n_head or cache.ne[1] < n_kv:
        raise GraphError(
            f"cache '{cache.name}' {list(cache.ne[:2])}: expected [{d * n_head}, {n_kv} or more]"
        )
    if d % TRAITS[cache.type].block_size:
        raise UnsupportedError(
            f"cache '{cache.name}' of type {TRAITS[cache.type].name} with heads of {d}: "
            f"expected a multiple of {TRAITS[cache.type].block_size}"
        )
    strides = (cache.nb[1], row_size(cache.type, d))
    return context.graph.view(cache, (d, n_kv, n_head), strides)


def _keys_values(context: StageContext, il: int) -> tuple[Tensor, Tensor]:
    hparams = context.hparams
    n_kv, n_head = context.inputs.cache(hparams.is_swa[il]).n_kv, hparams.n_head_kv[il]
    k = _cached(context, context.k_cache[il], hparams.n_embd_head_k, n_head, n_kv)
    v = _cached(context, context.v_cache[il], hparams.n_embd_head_v, n_head, n_kv)
    return label(k, "cache_k_view", il), label(v, "cache_v_view", il)


def _mask(context: StageContext, il: int) -> Tensor:
    mask = context.inputs.cache(context.hparams.is_swa[il]).mask
    assert mask is not None, "masks are declared with the inputs"
    return mask


def _flash_attention(context: StageContext, il: int, queries: Tensor) -> Tensor:
    """Queries [d, n_head, n] → [d * n_head, n] in one node."""
    graph, hparams = context.graph, context.hparams
    q = graph.permute(queries, 0, 2, 1, 3)
    k, v = _keys_values(context, il)
    mask = _mask(context, il)
    scale, cap = hparams.attention_scale, hparams.attn_logit_softcap
    params = Params.pack("3fi", scale, 0.0, cap, PREC_F32)
    result = label(graph.node(Op.FLASH_ATTN_EXT, q, k, v, mask, params=params), "__fattn__", il)
    return graph.reshape(result, result.ne[0] * result.ne[1], result.ne[2])


def _plain_attention(context: StageContext, il: int, queries: Tensor) -> Tensor:
    """Queries [d, n_head, n] → [d * n_head, n] by two products and a softmax."""
    graph, hparams = context.graph, context.hparams
    q = graph.permute(queries, 0, 2, 1, 3)
    k, v = _keys_values(context, il)
    if TRAITS[v.type].is_quantized:
        raise UnsupportedError(
            f"V cache of type {TRAITS[v.type].name} without flash attention: "
            "expected f32, f16 or bf16"
        )
    kq = label(graph.node(Op.MUL_MAT, k, q, params=Params.pack("i", PREC_F32)), "kq", il)
    if hparams.attn_logit_softcap:
        kq = label(soft_cap(context, kq, hparams.attn_logit_softcap), "kq_capped", il)
    mask = _mask(context, il)
    weights = label(graph.soft_max(kq, mask, hparams.attention_scale), "kq_soft_max", il)
    turned = label(graph.cont(graph.transpose(v)), "v_cont", il)
    result = label(graph.mul_mat(turned, weights), "kqv", il)
    n_tokens = queries.ne[2]
    if n_tokens > 1:
        result = graph.cont(graph.permute(result, 0, 2, 1, 3))
    return graph.reshape(result, hparams.n_embd_head_v * hparams.n_head[il], n_tokens)
