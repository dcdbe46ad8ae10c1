"""The torch decoders against the gguf package, bit for bit, and the encoders likewise."""

import gguf
import numpy as np
import pytest
import torch

from app.ggml.types import MODEL_TYPES, TRAITS, GGMLType
from app.kernels.torch_ref import dequant, quantize

TYPES = sorted(dequant.TYPES)


def _few_bits_decoded(type_: GGMLType, blocks: np.ndarray) -> np.ndarray:
    """Q1_0 and Q2_0, which the gguf package has not got."""
    scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32)
    numbers = 2 * bits - 1 if type_ == GGMLType.Q1_0 else bits[:, ::2] + 2 * bits[:, 1::2] - 1
    with np.errstate(all="ignore"):
        return (numbers * scale).ravel()


def _gguf_decoded(type_: GGMLType, blocks: np.ndarray) -> np.ndarray:
    if type_ in (GGMLType.Q1_0, GGMLType.Q2_0):
        return _few_bits_decoded(type_, blocks.reshape(-1, TRAITS[type_].type_size))
    with np.errstate(all="ignore"):
        kind = gguf.GGMLQuantizationType(int(type_))
        return gguf.quants.dequantize(blocks.reshape(1, -1), kind).ravel()


def _assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, but any NaN equals any other."""
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], want.view(np.uint32)[~nan])


def test_every_quantised_model_type_has_a_decoder() -> None:
    assert {t for t in MODEL_TYPES if TRAITS[t].is_quantized} <= dequant.TYPES


@pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
def test_random_bytes_decode_as_gguf_does(type_: GGMLType) -> None:
    rng = np.random.default_rng(int(type_))
    blocks = rng.integers(0, 256, (2000, TRAITS[type_].type_size), dtype=np.uint8)
    got = dequant.decoded(type_, torch.from_numpy(blocks)).numpy().ravel()
    _assert_same_bits(got, _gguf_decoded(type_, blocks))


@pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("value", [0, 1, 2, 0x0F, 0x7F, 0x80, 0xF0, 0xFF])
def test_uniform_bytes_decode_as_gguf_does(type_: GGMLType, value: int) -> None:
    blocks = np.full((3, TRAITS[type_].type_size), value, dtype=np.uint8)
    got = dequant.decoded(type_, torch.from_numpy(blocks)).numpy().ravel()
    _assert_same_bits(got, _gguf_decoded(type_, blocks))


def test_every_mxfp4_exponent_decodes_as_gguf_does() -> None:
    blocks = np.full((256, 17), 0x1E, dtype=np.uint8)
    blocks[:, 0] = np.arange(256)
    got = dequant.decoded(GGMLType.MXFP4, torch.from_numpy(blocks)).numpy().ravel()
    _assert_same_bits(got, _gguf_decoded(GGMLType.MXFP4, blocks))


@pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
def test_large_and_strided_inputs_decode_in_pieces(type_: GGMLType) -> None:
    traits = TRAITS[type_]
    rng = np.random.default_rng(1)
    count = 2 * (1 << 18) // traits.block_size + 6
    blocks = rng.integers(0, 256, (2, count // 2, traits.type_size + 2), dtype=np.uint8)
    view = torch.from_numpy(blocks)[:, :, 1 : 1 + traits.type_size]
    wide = torch.empty(2, view.shape[1] * traits.block_size + 5)
    dequant.into(type_, view, wide[:, :-5])
    want = _gguf_decoded(type_, np.ascontiguousarray(blocks[:, :, 1 : 1 + traits.type_size]))
    _assert_same_bits(np.ascontiguousarray(wide[:, :-5].numpy()).ravel(), want)


def _rows(seed: int, size: int = 32) -> np.ndarray:
    """Blocks: normal, tiny, huge, constant, zero, one-sided, with ties."""
    rng = np.random.default_rng(seed)
    rows = [
        rng.standard_normal((300, size)) * 10.0 ** rng.integers(-6, 4, (300, 1)),
        np.zeros((2, size)),
        np.full((2, size), -3.0),
        np.abs(rng.standard_normal((20, size))),
        rng.integers(-8, 9, (50, size)) / 2,
    ]
    return np.concatenate(rows).astype(np.float32)


# The package has no quantisers for the others; stock ggml has (test_stock).
GGUF_ENCODES = sorted(
    quantize.ENCODERS.keys()
    & {GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.Q8_0}
    | {GGMLType.TQ1_0, GGMLType.TQ2_0, GGMLType.MXFP4}
)


@pytest.mark.parametrize("type_", GGUF_ENCODES, ids=lambda t: t.name)
def test_encoders_write_the_bytes_of_gguf(type_: GGMLType) -> None:
    rows = _rows(int(type_), TRAITS[type_].block_size)
    got = quantize.ENCODERS[type_](torch.from_numpy(rows)).numpy()
    want = gguf.quants.quantize(rows, gguf.GGMLQuantizationType(int(type_)))
    np.testing.assert_array_equal(got, want)


def test_iq4_nl_scale_is_the_least_squares_fit_of_its_indices() -> None:
    rows = _rows(5)[:300]
    blocks = quantize.ENCODERS[GGMLType.IQ4_NL](torch.from_numpy(rows)).numpy()
    unit = blocks.copy()
    unit[:, :2] = np.array([1.0], dtype=np.float16).view(np.uint8)
    chosen = _gguf_decoded(GGMLType.IQ4_NL, unit).reshape(rows.shape).astype(np.float64)
    weight = rows.astype(np.float64) ** 2
    fit = (weight * chosen * rows).sum(1) / (weight * chosen**2).sum(1)
    scale = blocks[:, :2].copy().view(np.float16).ravel()
    # A scale is stored as F16: 11 bits, or a fixed spacing of 2^-24 when it is tiny.
    np.testing.assert_allclose(scale, fit, rtol=2**-11, atol=2**-25)


# Squared error relative to normal numbers: about the square of the spacing over 12, where the
# greatest of a block of 32 lies near 2.2; what stock ggml's quantisers lose on the same numbers.
LOSSES = {
    GGMLType.Q2_K: 0.087,
    GGMLType.Q3_K: 0.0226,
    GGMLType.Q4_K: 0.0050,
    GGMLType.Q5_K: 0.00129,
    GGMLType.Q6_K: 0.00031,
    GGMLType.IQ4_NL: 0.0061,
    GGMLType.IQ4_XS: 0.0058,
    GGMLType.NVFP4: 0.0091,
    GGMLType.Q1_0: 0.360,
    GGMLType.Q2_0: 0.511,
}


@pytest.mark.parametrize("type_", sorted(LOSSES), ids=lambda t: t.name)
def test_encoding_loses_no_more_than_the_type_must(type_: GGMLType) -> None:
    rows = np.random.default_rng(3).standard_normal((200, TRAITS[type_].block_size))
    wanted = rows.astype(np.float32)
    blocks = quantize.ENCODERS[type_](torch.from_numpy(wanted)).numpy()
    lost = float(np.sum((_gguf_decoded(type_, blocks).reshape(rows.shape) - wanted) ** 2))
    assert lost / float(np.sum(wanted**2)) < 1.05 * LOSSES[type_]
