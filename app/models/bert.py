"""The bert architecture (BGE, MiniLM and other encoders): follows src/models/bert.cpp of llama.cpp
b11434.

Learned positions, and a feed-forward with GELU and biases. Nothing is rotated. Rerankers have a
classifier besides.
"""

from app.ggml.gguf_file import Metadata
from app.ggml.ops import UnaryOp
from app.ggml.tensor import Tensor
from app.models.base import StageContext, TensorSpec
from app.models.blocks import label, linear
from app.models.encoder import (
    encoder_embed,
    encoder_hparams,
    encoder_layer,
    encoder_tensors,
    no_logits,
)
from app.models.hparams import HParams
from app.models.pooling import classifier_tensors


def hparams(metadata: Metadata) -> HParams:
    """Read and check the hyper-parameters.

    Raises: ModelFormatError, UnsupportedError.
    """
    return encoder_hparams(metadata, "bert", None)


def tensors(hparams: HParams) -> tuple[TensorSpec, ...]:
    """List the tensors that the graph reads."""
    return (*encoder_tensors(hparams, position_rows=True), *classifier_tensors(hparams))


def embed(context: StageContext, x: Tensor) -> Tensor:
    """Add type and position to token embeddings [n_embd, n_tokens], and norm them."""
    return encoder_embed(context, x)


def layer(context: StageContext, il: int, x: Tensor) -> Tensor:
    """Add layer `il` to the hidden state [n_embd, n_tokens]."""
    return encoder_layer(context, il, x, _feed_forward)


def output(context: StageContext, x: Tensor) -> Tensor:
    """Refuse: an encoder has no output matrix. Raises: UnsupportedError."""
    no_logits(context)


def _feed_forward(context: StageContext, il: int, x: Tensor) -> Tensor:
    """down(gelu(up(x))), x [n_embd, n]."""
    up = linear(context, x, f"blk.{il}.ffn_up", "ffn_up", il)
    hidden = label(context.graph.unary(up, UnaryOp.GELU), "ffn_gelu", il)
    return linear(context, hidden, f"blk.{il}.ffn_down", "ffn_out", il)
