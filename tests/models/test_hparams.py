"""Hyper-parameters of each architecture from metadata, and the refusal of what is wrong in them."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ModelFormatError, UnsupportedError
from app.ggml.gguf_file import GGUFFile, MetaValue
from app.ggml.op_params import Params
from app.models.hparams import HParams
from app.models.registry import MODULES, get_architecture
from tests.helpers.assets import asset
from tests.helpers.tiny_gguf import ENCODERS, write_tiny
from tests.models.cases import CASES, N_VOCAB

DECODERS = tuple(arch for arch in MODULES if arch not in ENCODERS)
REQUIRED = (
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)


def _metadata(arch: str, **changes: MetaValue) -> dict[str, MetaValue]:
    """A model of 12 layers; changes name key suffixes with "__" for a dot."""
    values: dict[str, MetaValue] = {
        "context_length": 4096,
        "embedding_length": 256,
        "block_count": 12,
        "feed_forward_length": 512,
        "attention.head_count": 8,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    if arch in ENCODERS:
        eps = values.pop("attention.layer_norm_rms_epsilon")
        values |= {"attention.layer_norm_epsilon": eps, "attention.causal": False}
    values |= {suffix.replace("__", "."): value for suffix, value in changes.items()}
    return {f"{arch}.{suffix}": value for suffix, value in values.items()} | {
        "tokenizer.ggml.tokens": ["a", "b", "c"],
        "tokenizer.ggml.token_type_count": 2,
    }


def _read(arch: str, **changes: MetaValue) -> HParams:
    return get_architecture(arch).hparams(_metadata(arch, **changes))


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UnsupportedError, match="'falcon': expected one of bert, gemma3, llama, nomic"
    ):
        get_architecture("falcon")


@pytest.mark.parametrize("arch", DECODERS)
@pytest.mark.parametrize("suffix", REQUIRED)
def test_a_required_key_is_named_when_missing(arch: str, suffix: str) -> None:
    metadata = _metadata(arch)
    del metadata[f"{arch}.{suffix}"]
    with pytest.raises(ModelFormatError, match=f"'{arch}.{suffix}' is missing"):
        get_architecture(arch).hparams(metadata)


@pytest.mark.parametrize("arch", DECODERS)
@pytest.mark.parametrize(
    ("suffix", "value"),
    [
        ("block_count", 0),
        ("block_count", 513),
        ("embedding_length", 0),
        ("attention__head_count", 0),
        ("attention__head_count_kv", 3),
        ("attention__key_length", 33),
        ("rope__dimension_count", 16),
        ("rope__freq_base", 1.5),
        ("rope__freq_base", 0.0),
        ("rope__scaling__factor", -2.0),
        ("rope__scaling__factor", 1e30),
        ("rope__scaling__attn_factor", 0.0),
        ("rope__scaling__type", 1),
        ("feed_forward_length", "many"),
        ("attention__layer_norm_rms_epsilon", -1e-6),
    ],
)
def test_a_wrong_value_is_refused_and_named(arch: str, suffix: str, value: MetaValue) -> None:
    key = suffix.replace("__", r"\.")
    with pytest.raises(ModelFormatError, match=f"'{arch}.{key}' is "):
        _read(arch, **{suffix: value})


@pytest.mark.parametrize("arch", DECODERS)
def test_a_foreign_scaling_of_positions_is_refused(arch: str) -> None:
    with pytest.raises(UnsupportedError, match="'longrope': expected one of none, linear, yarn"):
        _read(arch, rope__scaling__type="longrope")


@pytest.mark.parametrize("arch", DECODERS)
def test_values_unlike_keys_are_refused(arch: str) -> None:
    with pytest.raises(UnsupportedError, match="value_length' is 16"):
        _read(arch, attention__key_length=64, attention__value_length=16)


def test_experts_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"llama\.expert_count' is 8"):
        _read("llama", expert_count=8)


@pytest.mark.parametrize("arch", DECODERS)
def test_the_vocabulary_is_counted_or_told(arch: str) -> None:
    assert _read(arch, vocab_size=999).n_vocab == 3
    metadata = _metadata(arch, vocab_size=999)
    del metadata["tokenizer.ggml.tokens"]
    assert get_architecture(arch).hparams(metadata).n_vocab == 999
    del metadata[f"{arch}.vocab_size"]
    with pytest.raises(ModelFormatError, match=r"tokenizer\.ggml\.tokens"):
        get_architecture(arch).hparams(metadata)


def test_heads_may_differ_by_layer() -> None:
    heads = np.array([8, 4] * 6, np.int32)
    hparams = _read("llama", attention__head_count=heads, attention__head_count_kv=2)
    assert hparams.n_head[:3] == (8, 4, 8)
    assert hparams.n_embd_k_gqa(1) == 2 * hparams.n_embd_head_k


@pytest.mark.parametrize(
    ("arch", "mode"), [("llama", 0), ("qwen2", 2), ("qwen3", 2), ("gemma3", 2)]
)
def test_the_mode_of_rotation_is_the_architectures(arch: str, mode: int) -> None:
    assert {rope.mode for rope in _read(arch).rope} == {mode}


def test_linear_scaling_divides_positions() -> None:
    rope = _read("llama", rope__scaling__type="linear", rope__scaling__factor=4.0).rope[0]
    assert (rope.freq_scale, rope.ext_factor, rope.attn_factor) == (0.25, 0.0, 1.0)
    assert _read("llama", rope__scale_linear=4.0).rope[0].freq_scale == 0.25
    assert _read("llama", rope__scaling__factor=0.0).rope[0].freq_scale == 1.0


def test_scaling_none_ignores_the_factor() -> None:
    rope = _read("llama", rope__scaling__type="none", rope__scaling__factor=4.0).rope[0]
    assert rope.freq_scale == 1.0


def test_yarn_leaves_the_magnitude_to_the_operation() -> None:
    yarn: dict[str, MetaValue] = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    more: dict[str, MetaValue] = {"rope__scaling__original_context_length": 1024}
    rope = _read("qwen2", **yarn, **more, rope__scaling__attn_factor=1.5).rope[0]
    assert rope.ext_factor == 1.0
    assert rope.attn_factor * (1 + 0.1 * math.log(4)) == pytest.approx(
        1.5 * (1 + 0.1 * math.log(4))
    )
    assert rope.n_ctx_orig == 1024
    assert _read("qwen2", **yarn).rope[0].n_ctx_orig == 4096


def test_yarn_values_come_from_the_file_where_it_has_them() -> None:
    own: dict[str, MetaValue] = {
        "rope__scaling__type": "yarn",
        "rope__scaling__yarn_ext_factor": 0.5,
        "rope__scaling__yarn_beta_fast": 16.0,
        "rope__scaling__yarn_beta_slow": 2.0,
    }
    rope = _read("qwen2", **own).rope[0]
    assert (rope.ext_factor, rope.beta_fast, rope.beta_slow) == (0.5, 16.0, 2.0)
    unset = _read("qwen2", **own | {"rope__scaling__yarn_ext_factor": -1.0}).rope[0]
    assert unset.ext_factor == 1.0


def test_without_extrapolation_the_attention_factor_counts() -> None:
    rope = _read("qwen2", rope__scaling__yarn_attn_factor=1.25).rope[0]
    assert (rope.ext_factor, rope.attn_factor) == (0.0, 1.25)


def test_gemma3_has_five_window_layers_then_a_full_one() -> None:
    hparams = _read("gemma3", attention__sliding_window=512, rope__freq_base=1e6)
    assert hparams.is_swa == (True, True, True, True, True, False) * 2
    assert hparams.n_swa == 512
    assert [rope.freq_base for rope in hparams.rope[4:7]] == [1e4, 1e6, 1e4]
    assert hparams.embedding_scale == 16.0


def test_gemma3_scales_positions_of_full_layers_only() -> None:
    hparams = _read("gemma3", attention__sliding_window=512, rope__scaling__factor=8.0)
    assert [rope.freq_scale for rope in hparams.rope[4:7]] == [1.0, 0.125, 1.0]


def test_gemma3_without_a_window_is_full_everywhere() -> None:
    for changes in ({}, {"attention__sliding_window": 0}):
        hparams = _read("gemma3", rope__freq_base=1e6, **changes)
        assert not any(hparams.is_swa)
        assert {rope.freq_base for rope in hparams.rope} == {1e6}


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [
        (2, [True, False] * 6),
        (1, [False] * 12),
        (0, [True] * 12),
        (np.array([1, 0, 0] * 4, np.uint8), [True, False, False] * 4),
        (np.array([False, True] * 6), [False, True] * 6),
    ],
)
def test_gemma3_takes_its_pattern_from_the_file(pattern: MetaValue, windows: list[bool]) -> None:
    hparams = _read(
        "gemma3", attention__sliding_window=512, attention__sliding_window_pattern=pattern
    )
    assert list(hparams.is_swa) == windows


@pytest.mark.parametrize("pattern", ["six", np.array([1, 0], np.uint8), -1, 2.0])
def test_gemma3_refuses_a_wrong_pattern(pattern: MetaValue) -> None:
    with pytest.raises(ModelFormatError, match="sliding_window_pattern"):
        _read("gemma3", attention__sliding_window=512, attention__sliding_window_pattern=pattern)


def test_gemma3_27b_scales_by_the_width_per_head() -> None:
    sizes: dict[str, MetaValue] = {
        "embedding_length": 5376,
        "attention__head_count": 32,
        "attention__key_length": 128,
        "attention__value_length": 128,
    }
    assert _read("gemma3", **sizes).attention_scale == pytest.approx(128**-0.5)
    assert _read("gemma3", **sizes, block_count=62).attention_scale == pytest.approx(168**-0.5)


NUMBERS = st.one_of(
    st.integers(-2, 64), st.integers(-(2**63), 2**64 - 1), st.floats(), st.floats(-2.0, 64.0)
)
VALUES = st.one_of(
    NUMBERS,
    st.booleans(),
    st.text(max_size=4),
    st.sampled_from(["none", "linear", "yarn"]),
    st.lists(st.integers(-1, 64), max_size=13).map(np.array),
)
SUFFIXES = (
    *REQUIRED,
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "final_logit_softcapping",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
)


@pytest.mark.parametrize("arch", MODULES)
@given(changes=st.dictionaries(st.sampled_from(SUFFIXES), VALUES, max_size=5))
def test_any_metadata_gives_packable_numbers_or_a_typed_error(
    arch: str, changes: dict[str, MetaValue]
) -> None:
    metadata = _metadata(arch) | {f"{arch}.{suffix}": v for suffix, v in changes.items()}
    try:
        hparams = get_architecture(arch).hparams(metadata)
    except (ModelFormatError, UnsupportedError):
        return
    for rope in hparams.rope:
        rope.pack()
    scalars = (hparams.norm_eps, hparams.attention_scale, hparams.final_logit_softcap)
    Params.pack("4f", *scalars, hparams.embedding_scale)
    assert get_architecture(arch).tensors(hparams)


@pytest.mark.model
def test_hyper_parameters_of_a_real_llama() -> None:
    with GGUFFile.open(asset("smollm2")) as gguf:
        hparams = get_architecture(gguf.architecture).hparams(gguf.metadata)
    assert (hparams.n_vocab, hparams.n_ctx_train, hparams.n_embd) == (49152, 8192, 576)
    assert (hparams.n_layer, hparams.n_head[0], hparams.n_head_kv[0]) == (30, 9, 3)
    assert (hparams.n_embd_head_k, hparams.n_ff[29], hparams.rope[0].freq_base) == (64, 1536, 1e5)


@pytest.mark.model
def test_hyper_parameters_of_a_real_gemma3() -> None:
    with GGUFFile.open(asset("gemma3")) as gguf:
        hparams = get_architecture(gguf.architecture).hparams(gguf.metadata)
    assert (hparams.n_vocab, hparams.n_embd, hparams.n_layer) == (262144, 640, 18)
    assert [il for il, windowed in enumerate(hparams.is_swa) if not windowed] == [5, 11, 17]
    assert (hparams.n_swa, hparams.n_embd_head_k) == (512, 256)
    assert (hparams.n_head[0], hparams.n_head_kv[0]) == (4, 1)
    assert hparams.attention_scale == 1 / 16


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_read(name: str, tmp_path: Path) -> None:
    config = CASES[name]
    path = write_tiny(tmp_path / "tiny.gguf", asset("stories260k"), config)
    with GGUFFile.open(path) as gguf:
        hparams = get_architecture(gguf.architecture).hparams(gguf.metadata)
    assert (hparams.n_layer, hparams.n_embd) == (config.n_layer, config.n_embd)
    assert (hparams.n_embd_head_k, hparams.n_vocab) == (config.n_embd_head, N_VOCAB)
