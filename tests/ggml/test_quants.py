"""Dequantised rows against the `gguf` package and numpy, bit for bit."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from app.errors import GraphError, UnsupportedError
from app.ggml.gguf_file import GGUFFile
from app.ggml.quants import dequantize_rows
from app.ggml.types import MODEL_TYPES, TRAITS, GGMLType, row_size
from tests.helpers.assets import asset
from tests.helpers.quant_blocks import random_rows

BY_TYPE = sorted(MODEL_TYPES)


@pytest.mark.parametrize("type_", BY_TYPE)
@pytest.mark.parametrize("n_rows", [1, 17])
def test_rows_equal_the_gguf_package_bit_for_bit(type_: GGMLType, n_rows: int) -> None:
    rows = random_rows(type_, n_rows, 512, np.random.default_rng(type_))
    ours = dequantize_rows(type_, rows.tobytes(), 512)
    theirs = dequantize(rows, GGMLQuantizationType(type_))
    assert ours.shape == (n_rows, 512)
    assert ours.dtype == np.float32
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("type_", BY_TYPE)
def test_random_rows_have_the_spread_that_was_asked(type_: GGMLType) -> None:
    rows = random_rows(type_, 64, 256, np.random.default_rng(0), std=0.5)
    values = dequantize_rows(type_, rows.tobytes(), 256)
    # Scales are drawn from a range around the target: 0.5 give or take a tenth.
    assert 0.45 < values.std() < 0.56
    assert abs(values.mean()) < 0.06


@pytest.mark.parametrize("type_", BY_TYPE)
def test_any_bits_decode_without_a_warning(type_: GGMLType) -> None:
    size = row_size(type_, 256) * 8
    raw = np.random.default_rng(type_).integers(0, 256, size, dtype=np.uint8).tobytes()
    assert dequantize_rows(type_, raw, 256).shape == (8, 256)
    assert dequantize_rows(type_, b"\xff" * size, 256).shape == (8, 256)


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_embedding_rows_of_a_real_model_equal_the_gguf_package(name: str) -> None:
    with GGUFFile.open(asset(name)) as gguf:
        info = gguf.tensors["token_embd.weight"]
        row = row_size(info.type, info.ne[0])
        data = gguf.data("token_embd.weight")[100 * row : 164 * row]
        ours = dequantize_rows(info.type, data, info.ne[0])
        raw = np.frombuffer(data, np.uint8).reshape(64, row).copy()
    assert ours.tobytes() == dequantize(raw, GGMLQuantizationType(info.type)).tobytes()


def test_the_result_does_not_point_into_the_source() -> None:
    source = bytearray(np.arange(4, dtype=np.float32).tobytes())
    rows = dequantize_rows(GGMLType.F32, source, 4)
    source[:] = bytes(16)
    assert rows.tolist() == [[0.0, 1.0, 2.0, 3.0]]


def test_what_is_no_whole_number_of_rows_is_refused() -> None:
    with pytest.raises(GraphError, match="whole rows of 34 bytes"):
        dequantize_rows(GGMLType.Q8_0, bytes(33), 32)
    with pytest.raises(GraphError, match="multiple of 32"):
        dequantize_rows(GGMLType.Q8_0, bytes(34), 16)
    with pytest.raises(GraphError, match="whole rows"):
        dequantize_rows(GGMLType.F32, b"", 4)


@pytest.mark.parametrize("type_", sorted(set(TRAITS) - MODEL_TYPES))
def test_other_types_are_refused_by_name(type_: GGMLType) -> None:
    with pytest.raises(UnsupportedError, match=TRAITS[type_].name):
        dequantize_rows(type_, bytes(1024), 256)
