"""What dense models share: the metadata keys of their sizes, their tensor list, and the
layer of norm, attention, norm and gated feed-forward with two residual additions.

Each architecture calls these from its own module and adds what is its own. Follows load_hparams of
llama-model.cpp at llama.cpp b11434.
"""

import math
from typing import Final

from app.errors import ModelFormatError, UnsupportedError
from app.ggml.gguf_file import Metadata
from app.ggml.op_params import RopeParams
from app.ggml.ops import GluOp, RopeMode
from app.ggml.tensor import Tensor
from app.models.attention import attention
from app.models.base import StageContext, TensorSpec
from app.models.blocks import feed_forward, label, norm, pick_outputs
from app.models.hparams import HParams
from app.models.metadata import f32, size, sizes_per_layer, wrong_value
from app.models.rope import read_rope
from app.models.unsupported import refuse_unsupported

MAX_LAYERS: Final = 512


def dense_hparams(
    metadata: Metadata,
    arch: str,
    rope_mode: RopeMode | None,
    *,
    honoured: frozenset[str] = frozenset(),
    eps_key: str = "attention.layer_norm_rms_epsilon",
) -> HParams:
    """Read the sizes of a model whose layers all have full attention; without `rope_mode` nothing
    is rotated. `honoured` holds the keys that the caller reads besides.

    Raises: ModelFormatError, UnsupportedError.
    """
    refuse_unsupported(metadata, arch, honoured=honoured)
    n_layer = size(metadata, f"{arch}.block_count")
    if n_layer > MAX_LAYERS:
        raise wrong_value(f"{arch}.block_count", n_layer, f"at most {MAX_LAYERS}")
    n_embd = size(metadata, f"{arch}.embedding_length")
    n_head = sizes_per_layer(metadata, f"{arch}.attention.head_count", n_layer)
    n_head_kv = sizes_per_layer(metadata, f"{arch}.attention.head_count_kv", n_layer, n_head)
    if any(heads % shared for heads, shared in zip(n_head, n_head_kv, strict=True)):
        key = f"{arch}.attention.head_count_kv"
        raise wrong_value(key, n_head_kv, f"divisors of the head counts {n_head}")
    n_embd_head = _head_size(metadata, arch, n_embd, n_head[0])
    n_ctx_train = size(metadata, f"{arch}.context_length")
    rope: tuple[RopeParams, ...] = ()
    if rope_mode is not None:
        dims = _rope_dims(metadata, arch, n_embd_head)
        rope = (
            read_rope(metadata, arch, n_dims=dims, mode=rope_mode, n_ctx_train=n_ctx_train),
        ) * n_layer
    return HParams(
        arch=arch,
        n_vocab=_n_vocab(metadata, arch),
        n_ctx_train=n_ctx_train,
        n_embd=n_embd,
        n_layer=n_layer,
        n_ff=sizes_per_layer(metadata, f"{arch}.feed_forward_length", n_layer),
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_embd_head_k=n_embd_head,
        n_embd_head_v=n_embd_head,
        norm_eps=_norm_eps(metadata, f"{arch}.{eps_key}"),
        rope=rope,
        attention_scale=1.0 / math.sqrt(n_embd_head),
        n_swa=0,
        is_swa=(False,) * n_layer,
    )


def _n_vocab(metadata: Metadata, arch: str) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and tokens:
        return len(tokens)
    key = f"{arch}.vocab_size"
    if key not in metadata:
        raise ModelFormatError(f"metadata keys 'tokenizer.ggml.tokens' and '{key}' are missing")
    return size(metadata, key)


def _norm_eps(metadata: Metadata, key: str) -> float:
    eps = f32(metadata, key)
    if eps < 0.0:
        raise wrong_value(key, eps, "a number that is not negative")
    return eps


def _head_size(metadata: Metadata, arch: str, n_embd: int, n_head: int) -> int:
    """Elements of one head, for keys and values alike.

    Window layers may not differ from the others.
    """
    key, implied = f"{arch}.attention.key_length", n_embd // n_head
    n_embd_head = size(metadata, key, implied)
    if n_embd_head % 2:
        raise wrong_value(key, n_embd_head, "an even size of a head")
    defaults = {
        "value_length": implied,
        "key_length_swa": n_embd_head,
        "value_length_swa": n_embd_head,
    }
    for kind, default in defaults.items():
        other_key = f"{arch}.attention.{kind}"
        other = size(metadata, other_key, default)
        if other != n_embd_head:
            raise UnsupportedError(
                f"metadata key '{other_key}' is {other}: expected the size of a key, {n_embd_head}"
            )
    return n_embd_head


def _rope_dims(metadata: Metadata, arch: str, n_embd_head: int) -> int:
    """Rotated elements of a head; a part of a head is not what these architectures rotate."""
    for suffix in ("rope.dimension_count", "rope.dimension_count_swa"):
        key = f"{arch}.{suffix}"
        n_dims = size(metadata, key, n_embd_head)
        if n_dims != n_embd_head:
            raise wrong_value(key, n_dims, f"the size of a head, {n_embd_head}")
    return n_embd_head


def dense_tensors(
    hparams: HParams,
    *,
    head_norms: bool = False,
    post_norms: bool = False,
    extra_biases: tuple[str, ...] = (),
) -> tuple[TensorSpec, ...]:
    """List the tensors of a dense model; `extra_biases` names the matrices, besides those of Q, K
    and V, that may have a bias.
    """
    n_embd, n_vocab = hparams.n_embd, hparams.n_vocab
    specs = [
        TensorSpec("token_embd.weight", (n_embd, n_vocab)),
        TensorSpec("output_norm.weight", (n_embd,)),
        TensorSpec("output.weight", (n_embd, n_vocab), required=False),
    ]
    if "output" in extra_biases:
        specs.append(TensorSpec("output.bias", (n_vocab,), required=False))
    biases = ("attn_q", "attn_k", "attn_v", *extra_biases)
    for il in range(hparams.n_layer):
        norms = [("attn_norm", n_embd), ("ffn_norm", n_embd)]
        if head_norms:
            n_head = hparams.n_embd_head_k
            norms += [("attn_q_norm", n_head), ("attn_k_norm", n_head)]
        if post_norms:
            norms += [("post_attention_norm", n_embd), ("post_ffw_norm", n_embd)]
        specs += [TensorSpec(f"blk.{il}.{name}.weight", (n,), il) for name, n in norms]
        for name, ne in _layer_matrices(hparams, il).items():
            specs.append(TensorSpec(f"blk.{il}.{name}.weight", ne, il))
            if name in biases:
                specs.append(TensorSpec(f"blk.{il}.{name}.bias", ne[1:], il, required=False))
    return tuple(specs)


def _layer_matrices(hparams: HParams, il: int) -> dict[str, tuple[int, int]]:
    n_embd, n_ff = hparams.n_embd, hparams.n_ff[il]
    n_embd_q = hparams.n_embd_head_k * hparams.n_head[il]
    return {
        "attn_q": (n_embd, n_embd_q),
        "attn_k": (n_embd, hparams.n_embd_k_gqa(il)),
        "attn_v": (n_embd, hparams.n_embd_v_gqa(il)),
        "attn_output": (n_embd_q, n_embd),
        "ffn_gate": (n_embd, n_ff),
        "ffn_up": (n_embd, n_ff),
        "ffn_down": (n_ff, n_embd),
    }


def dense_layer(context: StageContext, il: int, x: Tensor) -> Tensor:
    """Add the layer that llama, qwen2 and qwen3 share to the hidden state [n_embd, n]."""
    graph = context.graph
    normed = norm(context, x, f"blk.{il}.attn_norm", "attn_norm", il)
    attn, residual = pick_outputs(context, il, attention(context, il, normed), x)
    ffn_inp = label(graph.add(attn, residual), "ffn_inp", il)
    normed = norm(context, ffn_inp, f"blk.{il}.ffn_norm", "ffn_norm", il)
    ffn_out = feed_forward(context, il, normed, GluOp.SWIGLU)
    return label(graph.add(ffn_out, ffn_inp), "l_out", il)
