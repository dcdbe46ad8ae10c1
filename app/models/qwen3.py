"""The qwen3 architecture, dense: follows src/models/qwen3.cpp of llama.cpp b11434.

Like qwen2 without its biases, but each head of Q and K is normed before rotation, and the size of a
head is its own number rather than n_embd / n_head. A reranker has a matrix of two labels besides.
"""

from dataclasses import replace

from app.ggml.gguf_file import Metadata
from app.ggml.ops import RopeMode
from app.ggml.tensor import Tensor
from app.models.base import StageContext, TensorSpec
from app.models.blocks import lm_head
from app.models.dense import dense_hparams, dense_layer, dense_tensors
from app.models.hparams import HParams
from app.models.pooling import n_labels


def hparams(metadata: Metadata) -> HParams:
    """Read and check the hyper-parameters.

    Raises: ModelFormatError, UnsupportedError.
    """
    common = dense_hparams(metadata, "qwen3", RopeMode.NEOX)
    return replace(common, n_cls_out=n_labels(metadata, "qwen3"), cls_soft_max=True)


def tensors(hparams: HParams) -> tuple[TensorSpec, ...]:
    """List the tensors that the graph reads."""
    labels = TensorSpec("cls.output.weight", (hparams.n_embd, hparams.n_cls_out), required=False)
    return (*dense_tensors(hparams, head_norms=True), labels)


def embed(context: StageContext, x: Tensor) -> Tensor:
    """Token embeddings are the first hidden state."""
    return x


def layer(context: StageContext, il: int, x: Tensor) -> Tensor:
    """Add layer `il` to the hidden state [n_embd, n_tokens]."""
    return dense_layer(context, il, x)


def output(context: StageContext, x: Tensor) -> Tensor:
    """Turn the hidden state [n_embd, n_outputs] into logits [n_vocab, n_outputs]."""
    return lm_head(context, x)
