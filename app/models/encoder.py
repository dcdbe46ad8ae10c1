"""What the encoders of the BERT family share: metadata, tensors, input layer, and the layer of
attention and feed-forward with a layer norm behind each.

They see a whole text at once, in both directions, and make hidden states rather than logits. Every
token is of the first type ("sentence A"), as in llama.cpp. Follows src/models/bert.cpp of llama.cpp
b11434.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NoReturn

from app.errors import UnsupportedError
from app.ggml.gguf_file import Metadata
from app.ggml.ops import RopeMode
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType
from app.models.attention import attention
from app.models.base import StageContext, TensorSpec
from app.models.blocks import label, layer_norm, pick_outputs
from app.models.dense import dense_hparams
from app.models.hparams import HParams
from app.models.metadata import size, wrong_value
from app.models.pooling import n_labels

CAUSAL_KEY: Final = "attention.causal"
EPS_KEY: Final = "attention.layer_norm_epsilon"
TYPES_KEY: Final = "tokenizer.ggml.token_type_count"
POSITIONS: Final = "position_embd.weight"
TYPES: Final = "token_types.weight"

FeedForward = Callable[[StageContext, int, Tensor], Tensor]


def encoder_hparams(metadata: Metadata, arch: str, rope_mode: RopeMode | None) -> HParams:
    """Read the sizes of an encoder; without `rope_mode` nothing is rotated.

    Raises: ModelFormatError, UnsupportedError.
    """
    causal = metadata.get(f"{arch}.{CAUSAL_KEY}", True)
    if causal is not False:
        raise wrong_value(f"{arch}.{CAUSAL_KEY}", causal, "false")
    honoured = frozenset({CAUSAL_KEY})
    common = dense_hparams(metadata, arch, rope_mode, honoured=honoured, eps_key=EPS_KEY)
    return replace(
        common,
        causal=False,
        n_token_types=size(metadata, TYPES_KEY),
        n_cls_out=n_labels(metadata, arch),
    )


def encoder_tensors(
    hparams: HParams, *, position_rows: bool = False, gate: bool = False
) -> tuple[TensorSpec, ...]:
    """List the tensors of an encoder: `position_rows` for learned positions, `gate` for a gated
    feed-forward without biases.

    What the input layer reads goes with the first layer.
    """
    n_embd = hparams.n_embd
    specs = [
        TensorSpec("token_embd.weight", (n_embd, hparams.n_vocab)),
        TensorSpec(TYPES, (n_embd, hparams.n_token_types), 0, required=False),
        *_norm_specs("token_embd_norm", n_embd, 0),
    ]
    if position_rows:
        specs.append(TensorSpec(POSITIONS, (n_embd, hparams.n_ctx_train), 0))
    for il in range(hparams.n_layer):
        for name in ("attn_output_norm", "layer_output_norm"):
            specs += _norm_specs(f"blk.{il}.{name}", n_embd, il)
        specs += _matrix_specs(hparams, il, gate=gate)
    return tuple(specs)


def _norm_specs(name: str, n: int, il: int) -> list[TensorSpec]:
    return [TensorSpec(f"{name}.weight", (n,), il), TensorSpec(f"{name}.bias", (n,), il)]


def _matrix_specs(hparams: HParams, il: int, *, gate: bool) -> list[TensorSpec]:
    n_embd, n_ff = hparams.n_embd, hparams.n_ff[il]
    n_k, n_v = hparams.n_embd_k_gqa(il), hparams.n_embd_v_gqa(il)
    joint = f"blk.{il}.attn_qkv"
    specs = [
        TensorSpec(f"{joint}.weight", (n_embd, n_embd + n_k + n_v), il, required=False),
        TensorSpec(f"{joint}.bias", (n_embd + n_k + n_v,), il, required=False),
    ]
    for letter, n in (("q", n_embd), ("k", n_k), ("v", n_v)):
        name = f"blk.{il}.attn_{letter}"
        specs.append(TensorSpec(f"{name}.weight", (n_embd, n), il, instead=f"{joint}.weight"))
        specs.append(TensorSpec(f"{name}.bias", (n,), il, required=False))
    others = {"attn_output": (n_embd, n_embd), "ffn_up": (n_embd, n_ff), "ffn_down": (n_ff, n_embd)}
    for suffix, ne in (others | ({"ffn_gate": (n_embd, n_ff)} if gate else {})).items():
        specs.append(TensorSpec(f"blk.{il}.{suffix}.weight", ne, il))
        if not (gate and suffix.startswith("ffn")):
            specs.append(TensorSpec(f"blk.{il}.{suffix}.bias", ne[1:], il, required=False))
    return specs


def encoder_embed(context: StageContext, x: Tensor) -> Tensor:
    """Add type and position to token embeddings [n_embd, n_tokens], and norm them.

    Raises: UnsupportedError.
    """
    graph, weights = context.graph, context.weights
    types, rows = weights.get(TYPES), weights.get(POSITIONS)
    if types is not None:
        if types.type != GGMLType.F32:
            raise UnsupportedError(f"tensor '{TYPES}' has type {types.type.name}: expected F32")
        x = graph.add(x, graph.view(types, (types.ne[0],), ()))
    if rows is not None:
        positions = context.inputs.positions
        assert positions is not None, "the first stage has layers"
        x = graph.add(graph.get_rows(rows, positions), x)
    label(x, "inp_embd")
    return layer_norm(context, x, "token_embd_norm", "inp_norm")


def encoder_layer(context: StageContext, il: int, x: Tensor, feed_forward: FeedForward) -> Tensor:
    """Add layer `il` to the hidden state [n_embd, n]; the last keeps only the rows wanted."""
    graph = context.graph
    attn, residual = pick_outputs(context, il, attention(context, il, x), x)
    summed = graph.add(attn, residual)
    ffn_inp = layer_norm(context, summed, f"blk.{il}.attn_output_norm", "ffn_inp", il)
    ffn_out = feed_forward(context, il, ffn_inp)
    summed = graph.add(ffn_out, ffn_inp)
    return layer_norm(context, summed, f"blk.{il}.layer_output_norm", "l_out", il)


def no_logits(context: StageContext) -> NoReturn:
    """Refuse to make logits. Raises: UnsupportedError."""
    raise UnsupportedError(f"architecture '{context.hparams.arch}' makes no logits")
