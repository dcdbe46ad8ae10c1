"""The graph of a stage without running it: names, shapes, inputs, and how many nodes it has."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from app.errors import GraphError, UnsupportedError
from app.ggml.gguf_file import GGUFFile
from app.ggml.op_params import AttentionParams
from app.ggml.ops import VIEW_OPS, Op
from app.ggml.tensor import Tensor, TensorFlag, new_tensor
from app.ggml.types import GGMLType
from app.models.base import Architecture
from app.models.hparams import HParams
from app.models.inputs import StageShape
from app.models.registry import get_architecture
from app.models.stage import StageGraph, build_stage
from app.models.tensors import output_weight_name
from tests.helpers.assets import asset
from tests.helpers.tiny_gguf import write_tiny
from tests.models.cases import CASES, N_VOCAB

N_CELLS = 64
PROMPT = StageShape(n_tokens=8, n_kv_full=32, n_kv_window=32, n_outputs=3)
DECODE = StageShape(n_tokens=1, n_kv_full=32, n_kv_window=32, n_outputs=1)

# Names in one layer, as llama.cpp's callbacks give them (src/models/*.cpp, build b11434).
COMMON = "norm attn_norm Qcur Kcur Vcur kqv_out attn_out ffn_norm ffn_up ffn_gate ffn_out l_out"
LAYER_NAMES = {
    "llama": f"{COMMON} ffn_inp ffn_swiglu",
    "qwen2": f"{COMMON} ffn_inp ffn_swiglu",
    "qwen3": f"{COMMON} ffn_inp ffn_swiglu Qcur_normed Kcur_normed",
    "gemma3": f"{COMMON} sa_out ffn_geglu Qcur_normed Kcur_normed attn_post_norm ffn_post_norm",
}
# Nodes that compute: of a layer, and outside the layers, in a decode step with flash attention.
N_COMPUTE = {"llama": (19, 3), "qwen2": (22, 4), "qwen3": (23, 3), "gemma3": (27, 4)}


@dataclass
class Model:
    """A model whose weights and caches have no memory."""

    arch: Architecture
    hparams: HParams
    weights: Mapping[str, Tensor]
    type_kv: GGMLType = GGMLType.F16
    n_cells: int = N_CELLS

    def build(
        self,
        shape: StageShape,
        layers: range | None = None,
        *,
        has_output: bool | None = None,
        flash_attn: bool = True,
    ) -> StageGraph:
        """Build the stage of `layers`, of all when not told."""
        n_layer = self.hparams.n_layer
        layers = range(n_layer) if layers is None else layers
        sizes = (self.hparams.n_embd_k_gqa, self.hparams.n_embd_v_gqa)
        k, v = (
            {il: new_tensor(self.type_kv, [n(il), self.n_cells], f"kv-{il}") for il in layers}
            for n in sizes
        )
        return build_stage(
            self.arch,
            self.hparams,
            self.weights,
            k,
            v,
            shape,
            layers=layers,
            is_first=0 in layers,
            has_output=layers.stop == n_layer if has_output is None else has_output,
            flash_attn=flash_attn,
        )


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    path = write_tiny(tmp_path / "tiny.gguf", asset("stories260k"), CASES[request.param])
    with GGUFFile.open(path) as gguf:
        arch = get_architecture(gguf.architecture)
        weights = {name: new_tensor(t.type, t.ne, name) for name, t in gguf.tensors.items()}
        output = gguf.tensors[output_weight_name(gguf)]
        weights["output.weight"] = new_tensor(output.type, output.ne, "output.weight")
        return Model(arch, arch.hparams(gguf.metadata), weights)


every_architecture = pytest.mark.parametrize("model", LAYER_NAMES, indirect=True)
llama_only = pytest.mark.parametrize("model", ["llama"], indirect=True)
gemma3_only = pytest.mark.parametrize("model", ["gemma3"], indirect=True)


def _named(graph: StageGraph, name: str) -> Tensor:
    """The last node of that name."""
    return [node for node in graph.graph.nodes if node.name == name][-1]


@every_architecture
def test_intermediates_have_the_names_of_llama_cpp(model: Model) -> None:
    names = {node.name for node in model.build(PROMPT).graph.nodes}
    for il in range(model.hparams.n_layer):
        wanted = {f"{name}-{il}" for name in LAYER_NAMES[model.hparams.arch].split()}
        assert wanted <= names
    assert {"result_norm", "result_output"} <= names
    plain = {node.name for node in model.build(PROMPT, flash_attn=False).graph.nodes}
    assert {"kq-0", "kq_soft_max-0", "kqv-0"} <= plain


@every_architecture
def test_intermediates_have_their_shapes(model: Model) -> None:
    hparams, graph = model.hparams, model.build(PROMPT)
    d, heads, shared = hparams.n_embd_head_k, hparams.n_head[0], hparams.n_head_kv[0]
    assert _named(graph, "attn_norm-0").ne == (hparams.n_embd, 8, 1, 1)
    assert _named(graph, "Qcur-0").ne == (d, heads, 8, 1)
    assert _named(graph, "Kcur-0").ne == (d, shared, 8, 1)
    assert _named(graph, "cache_k_view-0").ne == (d, 32, shared, 1)
    assert _named(graph, "kqv_out-0").ne == (d * heads, 8, 1, 1)
    assert _named(graph, "l_out-0").ne == (hparams.n_embd, 8, 1, 1)
    last = hparams.n_layer - 1
    assert _named(graph, f"ffn_up-{last}").ne == (hparams.n_ff[0], 3, 1, 1)
    assert graph.result is not None
    assert graph.result.ne == (N_VOCAB, 3, 1, 1)
    assert graph.result.name == "result_output"
    assert graph.result.flags & TensorFlag.OUTPUT


@every_architecture
def test_a_decode_step_has_no_needless_nodes(model: Model) -> None:
    n_layer, (per_layer, outside) = model.hparams.n_layer, N_COMPUTE[model.hparams.arch]
    graph = model.build(DECODE).graph
    assert len(list(graph.compute_nodes())) == n_layer * per_layer + outside
    assert sum(node.op in VIEW_OPS for node in graph.nodes) == n_layer * 7
    assert not any(node.op in (Op.CONT, Op.CPY, Op.GET_ROWS) for node in graph.nodes)


@every_architecture
def test_without_flash_attention_one_copy_per_layer_turns_the_values(model: Model) -> None:
    nodes = model.build(DECODE, flash_attn=False).graph.nodes
    copies = [node.name for node in nodes if node.op in (Op.CONT, Op.CPY)]
    assert copies == [f"v_cont-{il}" for il in range(model.hparams.n_layer)]


@every_architecture
def test_attention_asks_for_sums_in_f32(model: Model) -> None:
    flash = next(n for n in model.build(DECODE).graph.nodes if n.op is Op.FLASH_ATTN_EXT)
    assert flash.params.i32(3) == 10  # GGML_PREC_F32
    scale = AttentionParams.unpack(flash.params).scale
    assert scale == pytest.approx(model.hparams.attention_scale)
    kq = _named(model.build(DECODE, flash_attn=False), "kq-0")
    assert kq.params.i32(0) == 10


@every_architecture
def test_keys_and_values_are_written_before_they_are_read(model: Model) -> None:
    nodes = model.build(PROMPT).graph.nodes
    for il in range(model.hparams.n_layer):
        order = {node.name: at for at, node in enumerate(nodes) if node.name.endswith(f"-{il}")}
        assert order[f"cache_k_set-{il}"] < order[f"__fattn__-{il}"]
        assert order[f"cache_v_set-{il}"] < order[f"__fattn__-{il}"]


@every_architecture
def test_all_weights_of_the_file_are_read(model: Model) -> None:
    leaves = {leaf.name for leaf in model.build(PROMPT).graph.leaves()}
    assert set(model.weights) - leaves <= {"token_embd.weight"}


@gemma3_only
def test_a_stage_declares_the_inputs_of_its_own_layers(model: Model) -> None:
    window, full = model.build(PROMPT, range(1)), model.build(PROMPT, range(1, 2))
    assert (window.inputs.full, full.inputs.window) == (None, None)
    assert window.inputs.window is not None
    assert full.inputs.full is not None
    assert window.inputs.output_rows is None
    names = {leaf.name for leaf in full.graph.leaves()}
    assert {"kv_cells_full", "kq_mask_full", "inp_embd", "inp_pos"} <= names
    assert not any("window" in name for name in names)


@every_architecture
@pytest.mark.parametrize(("flash_attn", "type_"), [(True, GGMLType.F16), (False, GGMLType.F32)])
def test_masks_have_the_type_that_attention_reads(
    model: Model, flash_attn: bool, type_: GGMLType
) -> None:
    inputs = model.build(PROMPT, flash_attn=flash_attn).inputs
    caches = [cache for cache in (inputs.full, inputs.window) if cache is not None]
    assert {cache.mask.type for cache in caches if cache.mask is not None} == {type_}


@every_architecture
def test_every_input_is_read_by_the_graph(model: Model) -> None:
    """What no node reads gets no memory from the planner, so it could not be set."""
    n_layer = model.hparams.n_layer
    for layers in (range(n_layer), range(1), range(n_layer - 1, n_layer), range(n_layer, n_layer)):
        for n_outputs in (0, 3, 8):
            staged = model.build(replace(PROMPT, n_outputs=n_outputs), layers)
            if not staged.graph.nodes:
                continue
            inputs, read = staged.inputs, {id(leaf) for leaf in staged.graph.leaves()}
            caches = [c for c in (inputs.full, inputs.window) if c is not None]
            tensors = [inputs.x, inputs.positions, inputs.output_rows]
            tensors += [t for c in caches for t in (c.cells, c.mask)]
            assert all(id(t) in read for t in tensors if t is not None)


@every_architecture
def test_only_the_last_layer_picks_rows_wherever_the_output_is(model: Model) -> None:
    n_layer, n_embd = model.hparams.n_layer, model.hparams.n_embd
    first = model.build(PROMPT, range(n_layer - 1))
    last = model.build(PROMPT, range(n_layer - 1, n_layer), has_output=False)
    output = model.build(PROMPT, range(n_layer, n_layer))
    assert first.result is not None
    assert last.result is not None
    assert output.result is not None
    assert (first.inputs.output_rows, first.result.ne) == (None, (n_embd, 8, 1, 1))
    assert last.inputs.output_rows is not None
    assert last.result.ne == (n_embd, 3, 1, 1)
    assert (output.inputs.x.ne, output.inputs.positions) == ((n_embd, 3, 1, 1), None)
    assert output.result.ne == (N_VOCAB, 3, 1, 1)


@every_architecture
def test_no_outputs_leave_only_what_the_caches_need(model: Model) -> None:
    n_layer = model.hparams.n_layer
    whole = model.build(replace(PROMPT, n_outputs=0))
    assert whole.result is None
    names = [node.name for node in whole.graph.nodes]
    assert f"cache_v_set-{n_layer - 1}" in names
    assert f"__fattn__-{n_layer - 2}" in names
    assert f"__fattn__-{n_layer - 1}" not in names
    assert f"Qcur-{n_layer - 1}" not in names
    assert not any(re.match("result_", name) for name in names)
    behind = model.build(replace(PROMPT, n_outputs=0), range(n_layer, n_layer))
    assert (behind.result, behind.graph.nodes) == (None, [])


@every_architecture
def test_graphs_have_keys_of_their_own(model: Model) -> None:
    assert model.build(PROMPT).graph.uid != model.build(PROMPT).graph.uid != 0


@gemma3_only
def test_soft_caps_stand_before_the_softmax_and_behind_the_logits(model: Model) -> None:
    model.hparams = replace(model.hparams, attn_logit_softcap=50.0, final_logit_softcap=30.0)
    flash = next(n for n in model.build(DECODE).graph.nodes if n.op is Op.FLASH_ATTN_EXT)
    assert AttentionParams.unpack(flash.params).logit_softcap == 50.0
    plain = model.build(DECODE, flash_attn=False)
    softmax = _named(plain, "kq_soft_max-0")
    assert softmax.require(0) is _named(plain, "kq_capped-0")
    assert plain.result is not None
    assert plain.result.op is Op.SCALE
    assert plain.result.params.f32(0) == 30.0


@llama_only
def test_a_cache_that_is_too_short_is_refused(model: Model) -> None:
    model.n_cells = 16
    with pytest.raises(GraphError, match=r"cache 'kv-0' \[32, 16\]: expected \[32, 32 or more\]"):
        model.build(PROMPT)


@pytest.mark.parametrize("model", ["qwen3"], indirect=True)
def test_quantised_values_need_flash_attention(model: Model) -> None:
    model.type_kv = GGMLType.Q8_0
    model.build(PROMPT)
    with pytest.raises(UnsupportedError, match="V cache of type q8_0 without flash attention"):
        model.build(PROMPT, flash_attn=False)


@pytest.mark.parametrize("model", ["llama-biases"], indirect=True)
def test_heads_that_are_no_whole_blocks_cannot_be_quantised(model: Model) -> None:
    model.type_kv = GGMLType.Q8_0
    with pytest.raises(UnsupportedError, match="heads of 16: expected a multiple of 32"):
        model.build(PROMPT)
