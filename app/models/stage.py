"""Builds the graph of one stage: a run of layers on one device, with the embedding's scaling before
the first and the output matrix behind the last.

The engine calls `build_stage` once per shape and keeps the result. The stage that holds the last
layer narrows the hidden state to the rows in `output_rows`; if it has the output matrix as well it
ends in logits [n_vocab, n_outputs], otherwise in the hidden state [n_embd, n_outputs], which a
stage with no layers turns into logits. Every other stage ends in [n_embd, n_tokens]. When no logits
are wanted (n_outputs 0) the stage with the last layer only writes its cache and has no result, and
one behind it has no nodes at all: neither it nor a transfer to it is needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.ggml.builder import GraphBuilder
from app.ggml.graph import Graph
from app.ggml.ops import Op
from app.ggml.tensor import Tensor
from app.models.base import Architecture, StageContext
from app.models.hparams import HParams
from app.models.inputs import CacheInputs, Ending, StageInputs, StageShape, make_inputs
from app.models.pooling import classify, embedding


@dataclass(frozen=True, slots=True)
class StageGraph:
    """A stage's graph, what to set before a run, and what to read after it."""

    graph: Graph
    inputs: StageInputs
    result: Tensor | None  # F32 [n_vocab, n_embd or n_cls_out, n_outputs or n_tokens]


def build_stage(
    arch: Architecture,
    hparams: HParams,
    weights: Mapping[str, Tensor],
    k_cache: Mapping[int, Tensor],
    v_cache: Mapping[int, Tensor],
    shape: StageShape,
    *,
    layers: range,
    is_first: bool,
    has_output: bool,
    flash_attn: bool,
) -> StageGraph:
    """Build the graph of `layers`; weights and caches as in StageContext.

    Raises: GraphError when weights or caches do not fit, UnsupportedError.
    """
    builder = GraphBuilder()
    has_last = hparams.n_layer - 1 in layers
    inputs = make_inputs(
        builder,
        hparams.n_embd,
        shape,
        has_full=any(not hparams.is_swa[il] for il in layers),
        has_window=any(hparams.is_swa[il] for il in layers),
        picks_rows=has_last,
        flash_attn=flash_attn,
    )
    context = StageContext(builder, hparams, weights, inputs, k_cache, v_cache, flash_attn)
    x = arch.embed(context, inputs.x) if is_first else inputs.x
    for il in layers:
        x = arch.layer(context, il, x)
    if shape.n_outputs == 0 and (has_last or has_output):
        graph = builder.finish()
        graph.nodes = _cache_writers(graph.nodes)
        return StageGraph(graph, _inputs_read(graph, inputs), None)
    if has_output:
        x = _end(arch, context, x, shape.ending)
    graph = builder.finish(x)
    return StageGraph(graph, _inputs_read(graph, inputs), x)


def _end(arch: Architecture, context: StageContext, x: Tensor, ending: Ending) -> Tensor:
    """Turn the last hidden state [n_embd, n_outputs] into what is wanted of it."""
    if ending is Ending.LOGITS:
        return arch.output(context, x)
    state = embedding(context, x)
    return classify(context, state) if ending is Ending.RANK else state


def _cache_writers(nodes: Sequence[Tensor]) -> list[Tensor]:
    """The nodes that writes to the cache depend on, those included."""
    needed: set[int] = set()
    for node in reversed(nodes):
        if node.op is Op.SET_ROWS or id(node) in needed:
            needed.add(id(node))
            needed.update(id(source) for source in node.src if source is not None)
    return [node for node in nodes if id(node) in needed]


def _inputs_read(graph: Graph, inputs: StageInputs) -> StageInputs:
    """Drop the masks and positions that no node reads: they get no memory and cannot be set."""
    read = {id(leaf) for leaf in graph.leaves()}

    def keep(cache: CacheInputs | None) -> CacheInputs | None:
        if cache is None or id(cache.mask) in read:
            return cache
        return replace(cache, mask=None)

    positions = inputs.positions if id(inputs.positions) in read else None
    full, window = keep(inputs.full), keep(inputs.window)
    return replace(inputs, positions=positions, full=full, window=window)
