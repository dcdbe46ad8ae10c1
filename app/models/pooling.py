"""From the last hidden state to an embedding or to the score of a reranker.

`embedding` and `classify` end a stage graph instead of the output matrix; which rows of the result
stand for a text is the engine's business (`app.engine.pooling`). Follows build_pooling of
llama-graph.cpp at llama.cpp b11434, with the pooling itself taken out of the graph.
"""

from collections.abc import Container

from app.ggml.gguf_file import Metadata
from app.ggml.ops import UnaryOp
from app.ggml.tensor import Tensor
from app.models.base import StageContext, TensorSpec
from app.models.blocks import label, linear, norm
from app.models.hparams import HParams, Pooling
from app.models.metadata import u32, wrong_value

HEADS = ("cls", "cls.output")


def read_pooling(metadata: Metadata, arch: str) -> Pooling:
    """Read the pooling that the model was made for; without one there is none.

    Raises: ModelFormatError.
    """
    key = f"{arch}.pooling_type"
    number = u32(metadata, key, Pooling.NONE)
    if number > max(Pooling):
        raise wrong_value(key, number, "a number from 0 to 4")
    return Pooling(number)


def n_labels(metadata: Metadata, arch: str) -> int:
    """Count the scores that a reranker gives a text.

    Raises: ModelFormatError.
    """
    key = f"{arch}.classifier.output_labels"
    labels = metadata.get(key, [])
    if not isinstance(labels, list):
        raise wrong_value(key, labels, "a list of names")
    return len(labels) or 1


def classifier_tensors(hparams: HParams) -> tuple[TensorSpec, ...]:
    """List the tensors of a classifier, none of which must be there."""
    n_embd, n_out = hparams.n_embd, hparams.n_cls_out
    sizes = {"cls": n_embd, "cls.output": n_out}
    return tuple(
        TensorSpec(f"{name}.{part}", ne, required=False)
        for name, n in sizes.items()
        for part, ne in (("weight", (n_embd, n)), ("bias", (n,)))
    )


def has_classifier(names: Container[str]) -> bool:
    """Whether a file with these tensors can rank."""
    return any(f"{head}.weight" in names for head in HEADS)


def embedding(context: StageContext, x: Tensor) -> Tensor:
    """Norm the last hidden state [n_embd, n] where the model has a norm behind its layers."""
    if "output_norm.weight" in context.weights:
        return norm(context, x, "output_norm", "result_norm")
    return x


def classify(context: StageContext, x: Tensor) -> Tensor:
    """Turn pooled rows [n_embd, n] into scores [n_cls_out, n]; the model has a classifier."""
    hidden, output = (f"{name}.weight" in context.weights for name in HEADS)
    if hidden:
        x = context.graph.unary(linear(context, x, "cls", "cls"), UnaryOp.TANH)
    if output:
        x = linear(context, x, "cls.output", "cls_out")
    if context.hparams.cls_soft_max:
        x = context.graph.soft_max(x, None, 1.0)
    return label(x, "result_embd_pooled")
