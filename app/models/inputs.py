"""The input tensors of a stage graph: what the engine sets before each run.

Full-attention layers and sliding-window layers have caches of different size, hence two sets of
cache inputs; a stage whose layers are all of one kind has only that one. `n_kv` is the number of
cache cells that attention looks at, padded so that one graph serves many steps.

The stage that holds the last layer narrows the hidden state to the rows whose logits are wanted, so
a stage behind it, with the output matrix only, gets [n_embd, n_outputs] and nothing else. When
every token is an output, rows are not picked and there is no `output_rows` to set.
"""

from dataclasses import dataclass
from enum import Enum

from app.ggml.builder import GraphBuilder
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType


@dataclass(frozen=True, slots=True)
class CacheInputs:
    """Where to write this step's keys and values and what each token may attend to; the mask is
    None when the graph only writes to the caches of this kind.
    """

    cells: Tensor  # I64 [n_tokens]: cache cell of each token
    mask: Tensor | None  # F16 (F32 without flash attention) [n_kv, n_tokens]: 0 or -inf
    n_kv: int


@dataclass(frozen=True, slots=True)
class StageInputs:
    """All inputs of one stage graph; None where the stage has no use for one."""

    x: Tensor  # F32 [n_embd, n_tokens]: embeddings, or the hidden state of the stage before
    positions: Tensor | None  # I32 [n_tokens]; None where nothing depends on them
    full: CacheInputs | None
    window: CacheInputs | None
    output_rows: Tensor | None  # I32 [n_outputs]: tokens whose logits are wanted, ascending

    def cache(self, is_swa: bool) -> CacheInputs:
        """The cache inputs of a layer's kind."""
        found = self.window if is_swa else self.full
        assert found is not None, "a stage has the cache inputs of its own layers"
        return found


class Ending(Enum):
    """What the last stage makes of the hidden state."""

    LOGITS = "logits"
    EMBEDDING = "embedding"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class StageShape:
    """What determines a stage graph; equal shapes share one graph."""

    n_tokens: int
    n_kv_full: int
    n_kv_window: int
    n_outputs: int
    ending: Ending = Ending.LOGITS


def make_inputs(
    graph: GraphBuilder,
    n_embd: int,
    shape: StageShape,
    *,
    has_full: bool,
    has_window: bool,
    picks_rows: bool,
    flash_attn: bool,
) -> StageInputs:
    """Declare the inputs of a stage graph of `shape`; `picks_rows` when it holds the last layer."""
    n = shape.n_tokens

    def cache(kind: str, n_kv: int) -> CacheInputs:
        mask_type = GGMLType.F16 if flash_attn else GGMLType.F32
        return CacheInputs(
            cells=graph.input(GGMLType.I64, [n], f"kv_cells_{kind}"),
            mask=graph.input(mask_type, [n_kv, n], f"kq_mask_{kind}"),
            n_kv=n_kv,
        )

    has_layers = has_full or has_window
    n_columns = n if has_layers else shape.n_outputs
    narrows = picks_rows and 0 < shape.n_outputs < n
    return StageInputs(
        x=graph.input(GGMLType.F32, [n_embd, n_columns], "inp_embd"),
        positions=graph.input(GGMLType.I32, [n], "inp_pos") if has_layers else None,
        full=cache("full", shape.n_kv_full) if has_full else None,
        window=cache("window", shape.n_kv_window) if has_window else None,
        output_rows=graph.input(GGMLType.I32, [shape.n_outputs], "inp_out_ids")
        if narrows
        else None,
    )
