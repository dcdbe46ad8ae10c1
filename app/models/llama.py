"""The llama architecture (Llama, Mistral, SmolLM …), dense: follows src/models/llama.cpp of
llama.cpp b11434.

Rotation of neighbouring pairs, with frequency factors where the file has "rope_freqs.weight"
(Llama 3.1 and later); every matrix may have a bias. Files with experts are refused.
"""

from app.ggml.gguf_file import Metadata
from app.ggml.ops import RopeMode
from app.ggml.tensor import Tensor
from app.models.base import StageContext, TensorSpec
from app.models.blocks import lm_head
from app.models.dense import dense_hparams, dense_layer, dense_tensors
from app.models.hparams import HParams

BIASES = ("attn_output", "ffn_gate", "ffn_up", "ffn_down")


def hparams(metadata: Metadata) -> HParams:
    """Read and check the hyper-parameters.

    Raises: ModelFormatError, UnsupportedError.
    """
    return dense_hparams(metadata, "llama", RopeMode.NORM)


def tensors(hparams: HParams) -> tuple[TensorSpec, ...]:
    """List the tensors that the graph reads."""
    n_factors = hparams.n_embd_head_k // 2
    factors = TensorSpec("rope_freqs.weight", (n_factors,), required=False)
    return (*dense_tensors(hparams, extra_biases=BIASES), factors)


def embed(context: StageContext, x: Tensor) -> Tensor:
    """Token embeddings are the first hidden state."""
    return x


def layer(context: StageContext, il: int, x: Tensor) -> Tensor:
    """Add layer `il` to the hidden state [n_embd, n_tokens]."""
    return dense_layer(context, il, x)


def output(context: StageContext, x: Tensor) -> Tensor:
    """Turn the hidden state [n_embd, n_outputs] into logits [n_vocab, n_outputs]."""
    return lm_head(context, x)
