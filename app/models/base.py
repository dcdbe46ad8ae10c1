"""What an architecture has to say for itself: its hyper-parameters, its tensors and its graph.

One module per architecture implements `Architecture` as plain functions; `app.models.registry`
finds it by the name in the file. A model is cut at layer borders: `embed` works on what comes from
the token embedding, `layer` adds one layer, `output` turns the last hidden state into logits, so a
stage of the pool is any run of these. Names of intermediates equal llama.cpp's, with the layer
after a dash, so that dumps can be compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from app.ggml.builder import GraphBuilder
from app.ggml.gguf_file import Metadata
from app.ggml.tensor import Tensor
from app.models.hparams import HParams
from app.models.inputs import StageInputs


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that an architecture reads: its name in the file, shape [ne], layer (None outside
    the layers). A required tensor may be absent where the file has the one named `instead`.
    """

    name: str
    ne: tuple[int, ...]
    layer: int | None = None
    required: bool = True
    instead: str = ""


@dataclass(frozen=True, slots=True)
class StageContext:
    """What `layer` and `output` build with: the builder, the weights by file name, the inputs, the
    caches by layer.

    Tensors that the file may lack are absent from `weights`; "output.weight" is there in every
    stage with the output, tied or not. Caches are [n_embd_k_gqa(il), n_cells] and
    [n_embd_v_gqa(il), n_cells].
    """

    graph: GraphBuilder
    hparams: HParams
    weights: Mapping[str, Tensor]
    inputs: StageInputs
    k_cache: Mapping[int, Tensor]
    v_cache: Mapping[int, Tensor]
    flash_attn: bool


class Architecture(Protocol):
    """The functions that each module in this folder defines."""

    def hparams(self, metadata: Metadata) -> HParams:
        """Read and check the hyper-parameters.

        Raises: ModelFormatError, UnsupportedError.
        """

    def tensors(self, hparams: HParams) -> tuple[TensorSpec, ...]:
        """List the tensors that the graph reads."""

    def embed(self, context: StageContext, x: Tensor) -> Tensor:
        """Turn token embeddings [n_embd, n_tokens] into the first hidden state."""

    def layer(self, context: StageContext, il: int, x: Tensor) -> Tensor:
        """Add layer `il` to the hidden state [n_embd, n_tokens]; the last layer keeps only the rows
        of `inputs.output_rows`.
        """

    def output(self, context: StageContext, x: Tensor) -> Tensor:
        """Turn the hidden state [n_embd, n_outputs] into logits [n_vocab, n_outputs]."""
