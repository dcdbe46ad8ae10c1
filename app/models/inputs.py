"""The input tensors of a stage graph: what the engine sets before each run.

Full-attention layers and sliding-window layers have caches of different size, hence two sets of
cache inputs; a stage whose layers are all of one kind has only that one. `n_kv` is the number of
cache cells that attention looks at, padded so that one graph serves many steps."""

from dataclasses import dataclass

from app.ggml.builder import GraphBuilder
from app.ggml.tensor import Tensor
from app.ggml.types import GGMLType


@dataclass(frozen=True, slots=True)
class CacheInputs:
    """Where to write this step's keys and values and what each token may attend to."""

    cells: Tensor  # I64 [n_tokens]: cache cell of each token
    mask: Tensor  # F16 (F32 without flash attention) [n_kv, n_tokens]: 0 or -inf
    n_kv: int


@dataclass(frozen=True, slots=True)
class StageInputs:
    """All inputs of one stage graph."""

    x: Tensor  # F32 [n_embd, n_tokens]: embeddings, or the hidden state of the stage before
    positions: Tensor  # I32 [n_tokens]
    full: CacheInputs | None
    window: CacheInputs | None
    output_rows: Tensor | None  # I32 [n_outputs]: tokens whose logits are wanted

    def cache(self, is_swa: bool) -> CacheInputs:
        """The cache inputs of a layer's kind."""
        found = self.window if is_swa else self.full
        assert found is not None, "a stage has the cache inputs of its own layers"
        return found


@dataclass(frozen=True, slots=True)
class StageShape:
    """The numbers that determine a stage graph; equal shapes share one graph."""

    n_tokens: int
    n_kv_full: int
    n_kv_window: int
    n_outputs: int


def make_inputs(
    graph: GraphBuilder,
    n_embd: int,
    shape: StageShape,
    *,
    has_full: bool,
    has_window: bool,
    has_output: bool,
    flash_attn: bool,
) -> StageInputs:
    """Declare the inputs of a stage graph of `shape`."""
    n = shape.n_tokens

    def cache(kind: str, n_kv: int) -> CacheInputs:
        mask_type = GGMLType.F16 if flash_attn else GGMLType.F32
        return CacheInputs(
            cells=graph.input(GGMLType.I64, [n], f"kv_cells_{kind}"),
            mask=graph.input(mask_type, [n_kv, n], f"kq_mask_{kind}"),
            n_kv=n_kv,
        )

    return StageInputs(
        x=graph.input(GGMLType.F32, [n_embd, n], "inp_embd"),
        positions=graph.input(GGMLType.I32, [n], "inp_pos"),
        full=cache("full", shape.n_kv_full) if has_full else None,
        window=cache("window", shape.n_kv_window) if has_window else None,
        output_rows=graph.input(GGMLType.I32, [shape.n_outputs], "inp_out_ids")
        if has_output and shape.n_outputs
        else None,
    )
