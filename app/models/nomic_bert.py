"""The nomic-bert architecture (nomic-embed-text): follows src/models/bert.cpp of llama.cpp b11434.

An encoder whose heads are rotated by halves and whose feed-forward is gated by SiLU, without
biases.
"""

from app.ggml.gguf_file import Metadata
from app.ggml.ops import GluOp, RopeMode
from app.ggml.tensor import Tensor
from app.models.base import StageContext, TensorSpec
from app.models.blocks import feed_forward
from app.models.encoder import (
    encoder_embed,
    encoder_hparams,
    encoder_layer,
    encoder_tensors,
    no_logits,
)
from app.models.hparams import HParams


def hparams(metadata: Metadata) -> HParams:
    """Read and check the hyper-parameters.

    Raises: ModelFormatError, UnsupportedError.
    """
    return encoder_hparams(metadata, "nomic-bert", RopeMode.NEOX)


def tensors(hparams: HParams) -> tuple[TensorSpec, ...]:
    """List the tensors that the graph reads."""
    return encoder_tensors(hparams, gate=True)


def embed(context: StageContext, x: Tensor) -> Tensor:
    """Add the type to token embeddings [n_embd, n_tokens], and norm them."""
    return encoder_embed(context, x)


def layer(context: StageContext, il: int, x: Tensor) -> Tensor:
    """Add layer `il` to the hidden state [n_embd, n_tokens]."""
    return encoder_layer(context, il, x, _feed_forward)


def output(context: StageContext, x: Tensor) -> Tensor:
    """Refuse: an encoder has no output matrix. Raises: UnsupportedError."""
    no_logits(context)


def _feed_forward(context: StageContext, il: int, x: Tensor) -> Tensor:
    return feed_forward(context, il, x, GluOp.SWIGLU)
