"""The qwen2 architecture (Qwen 2, Qwen 2.5), dense: follows src/models/qwen2.cpp of llama.cpp
b11434.

Like llama, but with biases on Q, K and V and rotation of the two halves of a head.
"""

from app.ggml.gguf_file import Metadata
from app.ggml.ops import RopeMode
from app.ggml.tensor import Tensor
from app.models.base import StageContext, TensorSpec
from app.models.blocks import lm_head
from app.models.dense import dense_hparams, dense_layer, dense_tensors
from app.models.hparams import HParams


def hparams(metadata: Metadata) -> HParams:
    """Read and check the hyper-parameters.

    Raises: ModelFormatError, UnsupportedError.
    """
    return dense_hparams(metadata, "qwen2", RopeMode.NEOX)


def tensors(hparams: HParams) -> tuple[TensorSpec, ...]:
    """List the tensors that the graph reads."""
    return dense_tensors(hparams, extra_biases=("output",))


def embed(context: StageContext, x: Tensor) -> Tensor:
    """Token embeddings are the first hidden state."""
    return x


def layer(context: StageContext, il: int, x: Tensor) -> Tensor:
    """Add layer `il` to the hidden state [n_embd, n_tokens]."""
    return dense_layer(context, il, x)


def output(context: StageContext, x: Tensor) -> Tensor:
    """Turn the hidden state [n_embd, n_outputs] into logits [n_vocab, n_outputs]."""
    return lm_head(context, x)
