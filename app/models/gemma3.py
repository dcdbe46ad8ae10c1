"""The gemma3 architecture (text), dense: follows src/models/gemma3.cpp of llama.cpp b11434.

Five layers with a sliding window, then one with full attention, and so on. Window layers rotate
with a base of their own and without scaling. Embeddings are multiplied by sqrt(n_embd), heads of Q
and K are normed, and attention and feed-forward are normed once more before they are added. Norm
weights in the file already have the 1 added.
"""

import math
from dataclasses import replace
from typing import Final

from app.ggml.gguf_file import Metadata
from app.ggml.ops import GluOp, RopeMode
from app.ggml.tensor import Tensor
from app.models.attention import attention
from app.models.base import StageContext, TensorSpec
from app.models.blocks import feed_forward, label, lm_head, norm, pick_outputs
from app.models.dense import dense_hparams, dense_tensors
from app.models.hparams import HParams
from app.models.metadata import f32, layer_array, u32
from app.models.rope import read_freq_base

WINDOW_KEY: Final = "attention.sliding_window"
SOFTCAP_KEY: Final = "final_logit_softcapping"
PATTERN_KEY: Final = "gemma3.attention.sliding_window_pattern"
DEFAULT_PATTERN: Final = 6
WINDOW_BASE_KEY: Final = "gemma3.rope.freq_base_swa"
N_LAYER_27B: Final = 62


def hparams(metadata: Metadata) -> HParams:
    """Read and check the hyper-parameters.

    Raises: ModelFormatError, UnsupportedError.
    """
    honoured = frozenset({WINDOW_KEY, SOFTCAP_KEY})
    common = dense_hparams(metadata, "gemma3", RopeMode.NEOX, honoured=honoured)
    n_swa = u32(metadata, f"gemma3.{WINDOW_KEY}", 0)
    is_swa = _window_layers(metadata, common.n_layer) if n_swa else common.is_swa
    full = common.rope[0]
    window = replace(full, freq_base=read_freq_base(metadata, WINDOW_BASE_KEY), freq_scale=1.0)
    scale_size = common.n_embd_head_k
    if common.n_layer == N_LAYER_27B:
        scale_size = common.n_embd // common.n_head[0]
    return replace(
        common,
        rope=tuple(window if windowed else full for windowed in is_swa),
        attention_scale=1.0 / math.sqrt(scale_size),
        n_swa=n_swa,
        is_swa=is_swa,
        final_logit_softcap=f32(metadata, f"gemma3.{SOFTCAP_KEY}", 0.0),
        embedding_scale=math.sqrt(common.n_embd),
    )


def _window_layers(metadata: Metadata, n_layer: int) -> tuple[bool, ...]:
    """Which layers have a window: by an array, or all but every n-th (0: all)."""
    if isinstance(metadata.get(PATTERN_KEY, 0), int):
        period = u32(metadata, PATTERN_KEY, DEFAULT_PATTERN)
        return tuple(period == 0 or il % period < period - 1 for il in range(n_layer))
    return tuple(bool(value) for value in layer_array(metadata, PATTERN_KEY, n_layer))


def tensors(hparams: HParams) -> tuple[TensorSpec, ...]:
    """List the tensors that the graph reads."""
    return dense_tensors(hparams, head_norms=True, post_norms=True)


def embed(context: StageContext, x: Tensor) -> Tensor:
    """Scale token embeddings [n_embd, n_tokens]."""
    return label(context.graph.scale(x, context.hparams.embedding_scale), "inp_scaled")


def layer(context: StageContext, il: int, x: Tensor) -> Tensor:
    """Add layer `il` to the hidden state [n_embd, n_tokens]."""
    graph = context.graph
    normed = norm(context, x, f"blk.{il}.attn_norm", "attn_norm", il)
    attn, residual = pick_outputs(context, il, attention(context, il, normed), x)
    attn = norm(context, attn, f"blk.{il}.post_attention_norm", "attn_post_norm", il)
    sa_out = label(graph.add(attn, residual), "sa_out", il)
    normed = norm(context, sa_out, f"blk.{il}.ffn_norm", "ffn_norm", il)
    ffn = feed_forward(context, il, normed, GluOp.GEGLU)
    ffn = norm(context, ffn, f"blk.{il}.post_ffw_norm", "ffn_post_norm", il)
    return label(graph.add(ffn, sa_out), "l_out", il)


def output(context: StageContext, x: Tensor) -> Tensor:
    """Turn the hidden state [n_embd, n_outputs] into logits [n_vocab, n_outputs]."""
    return lm_head(context, x)
