"""Readers of metadata: what they give, what they refuse, and that they say why."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from app.errors import ModelFormatError, UnsupportedError
from app.ggml.gguf_file import MetaValue
from app.models.metadata import f32, layer_array, size, sizes_per_layer, text, u32
from app.models.unsupported import refuse_unsupported


@pytest.mark.parametrize("reader", [u32, size, f32, text])
def test_a_missing_key_is_named(reader: Callable[..., object]) -> None:
    with pytest.raises(ModelFormatError, match=r"'a\.key' is missing: expected"):
        reader({}, "a.key")


@pytest.mark.parametrize(
    ("reader", "value"),
    [
        (u32, -1),
        (u32, 2**31),
        (u32, 1.0),
        (u32, True),
        (u32, "1"),
        (u32, np.array([1], np.uint32)),
        (size, 0),
        (f32, math.nan),
        (f32, math.inf),
        (f32, 1e39),
        (f32, 10**400),
        (f32, False),
        (f32, "1.0"),
        (text, 1),
        (text, ["a"]),
    ],
)
def test_a_wrong_value_is_named_with_its_key(
    reader: Callable[..., object], value: MetaValue
) -> None:
    with pytest.raises(ModelFormatError, match=r"'a\.key' is .*: expected"):
        reader({"a.key": value}, "a.key")


def test_a_default_stands_in_for_a_missing_key_only() -> None:
    assert u32({}, "k", 7) == 7
    assert f32({}, "k", 0.5) == 0.5
    assert text({}, "k", "x") == "x"
    assert u32({"k": 0}, "k", 7) == 0
    with pytest.raises(ModelFormatError):
        u32({"k": "seven"}, "k", 7)


def test_a_whole_number_is_a_number() -> None:
    assert f32({"k": 3}, "k") == 3.0


def test_one_number_counts_for_all_layers() -> None:
    assert sizes_per_layer({"k": 4}, "k", 3) == (4, 4, 4)
    assert sizes_per_layer({}, "k", 3, (1, 2, 3)) == (1, 2, 3)


def test_an_array_has_one_number_per_layer() -> None:
    assert sizes_per_layer({"k": np.array([4, 2], np.uint32)}, "k", 2) == (4, 2)
    assert layer_array({"k": np.array([True, False])}, "k", 2) == (1, 0)


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, 2, 3], np.uint32),
        np.array([1, 0], np.uint32),
        np.array([1, -2], np.int32),
        np.array([1.0, 2.0], np.float32),
        np.array([[1, 2]], np.uint32),
        ["1", "2"],
    ],
)
def test_a_wrong_array_is_refused(value: MetaValue) -> None:
    with pytest.raises(ModelFormatError, match="'k' is "):
        sizes_per_layer({"k": value}, "k", 2)


def test_a_huge_value_is_shown_short() -> None:
    with pytest.raises(ModelFormatError) as caught:
        u32({"k": ["token"] * 100_000}, "k")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("suffix", "value"),
    [
        ("expert_count", 8),
        ("attention.causal", False),
        ("attention.clamp_kqv", 8.0),
        ("attention.max_alibi_bias", 8.0),
        ("logit_scale", 16.0),
        ("rope.dimension_sections", np.array([16, 24, 24, 0], np.int32)),
        ("attention.sliding_window", 4096),
    ],
)
def test_a_key_that_would_change_results_is_refused(suffix: str, value: MetaValue) -> None:
    with pytest.raises(UnsupportedError, match=f"'x.{suffix}' is "):
        refuse_unsupported({f"x.{suffix}": value}, "x", honoured=frozenset())


def test_all_such_keys_are_named_at_once_and_neutral_ones_are_not() -> None:
    metadata: dict[str, MetaValue] = {
        "x.expert_count": 8,
        "x.residual_scale": 0.5,
        "x.logit_scale": 1.0,
        "x.attention.causal": True,
        "x.rope.dimension_sections": np.zeros(4, np.int32),
        "y.num_loops": 3,
    }
    with pytest.raises(UnsupportedError) as caught:
        refuse_unsupported(metadata, "x", honoured=frozenset())
    assert "expert_count" in str(caught.value)
    assert "residual_scale" in str(caught.value)
    assert str(caught.value).count("metadata key") == 2
    refuse_unsupported(metadata, "x", honoured=frozenset({"expert_count", "residual_scale"}))
