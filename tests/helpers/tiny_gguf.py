"""Writes small random models of each architecture as GGUF files that stock llama.cpp loads.

The tokenizer is copied from a given GGUF file, so the vocabulary size is that file's. Weights are
scaled so that activations stay near one and logits spread over a few units: a wrong rotation, norm
or mask then shows in the logits. The writer is the `gguf` package, not our own code.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from numpy.typing import NDArray

from app.ggml.gguf_file import GGUFFile, MetaValue
from app.ggml.types import GGMLType
from tests.helpers.quant_blocks import random_rows

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3", "gemma3")
ENCODERS: Final = ("bert", "nomic-bert")

# Name, shape [ne], kind of values.
TensorRow = tuple[str, tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """Sizes of a tiny model; `types` maps patterns of tensor names to types, the first match wins
    and F32 is left. `extra_tensors` are written as they stand.
    """

    arch: str
    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 128
    head_dim: int | None = None
    n_ctx_train: int = 2048
    tied: bool = True
    sliding_window: int = 16
    swa_pattern: int = 2
    rope_freq_base: float = 10000.0
    types: Mapping[str, GGMLType] = field(default_factory=dict)
    extra: Mapping[str, MetaValue] = field(default_factory=dict)
    extra_tensors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    seed: int = 0

    @property
    def n_embd_head(self) -> int:
        """Elements of one head."""
        return self.head_dim or self.n_embd // self.n_head


def write_tiny(path: Path, tokenizer_from: Path, config: TinyConfig) -> Path:
    """Write a model file and return its path; equal arguments give equal bytes."""
    writer = GGUFWriter(str(path), config.arch)
    _write_hparams(writer, config)
    n_vocab = copy_tokenizer(writer, tokenizer_from)
    for key, value in config.extra.items():
        _add(writer, key, value)
    rng = np.random.default_rng(config.seed)
    for name, ne, kind in _tensor_rows(config, n_vocab):
        _write_tensor(writer, name, ne, kind, config, rng)
    for name, values in config.extra_tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_hparams(writer: GGUFWriter, config: TinyConfig) -> None:
    if config.arch in ENCODERS:
        _write_encoder_hparams(writer, config)
        return
    writer.add_context_length(config.n_ctx_train)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.n_ff)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(config.rope_freq_base)
    writer.add_key_length(config.n_embd_head)
    writer.add_value_length(config.n_embd_head)
    if config.arch == "llama":
        writer.add_rope_dimension_count(config.n_embd_head)
    if config.arch == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_uint32("gemma3.attention.sliding_window_pattern", config.swa_pattern)


def _write_encoder_hparams(writer: GGUFWriter, config: TinyConfig) -> None:
    writer.add_context_length(config.n_ctx_train)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.n_ff)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    if config.arch == "nomic-bert":
        writer.add_rope_freq_base(config.rope_freq_base)


def copy_tokenizer(writer: GGUFWriter, source: Path) -> int:
    """Copy every tokenizer key and return the vocabulary size."""
    with GGUFFile.open(source) as gguf:
        for key, value in gguf.metadata.items():
            if key.startswith("tokenizer."):
                _add(writer, key, value)
        tokens = gguf.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list), "a tokenizer has a list of tokens"
    return len(tokens)


def _add(writer: GGUFWriter, key: str, value: MetaValue) -> None:
    if isinstance(value, np.ndarray):
        writer.add_array(key, value.tolist())
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        kind = GGUFValueType.UINT32 if value >= 0 else GGUFValueType.INT32
        writer.add_key_value(key, value, kind)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _tensor_rows(config: TinyConfig, n_vocab: int) -> Iterator[TensorRow]:
    if config.arch in ENCODERS:
        yield from _encoder_rows(config, n_vocab)
        return
    yield "token_embd.weight", (config.n_embd, n_vocab), "embedding"
    for il in range(config.n_layer):
        for name, ne, kind in (*_common_layer(config), *_EXTRA_ROWS[config.arch](config)):
            yield f"blk.{il}.{name}", ne, kind
    yield "output_norm.weight", (config.n_embd,), "norm"
    if not config.tied:
        yield "output.weight", (config.n_embd, n_vocab), "embedding"


def _encoder_rows(c: TinyConfig, n_vocab: int) -> Iterator[TensorRow]:
    """Tensors of an encoder; nomic-bert has joint projections and no biases at its matrices."""
    is_nomic = c.arch == "nomic-bert"
    yield "token_embd.weight", (c.n_embd, n_vocab), "embedding"
    yield "token_types.weight", (c.n_embd, 2), "embedding"
    if not is_nomic:
        yield "position_embd.weight", (c.n_embd, c.n_ctx_train), "embedding"
    qkv = {"attn_qkv": (c.n_embd, 3 * c.n_embd)}
    if not is_nomic:
        qkv = {f"attn_{letter}": (c.n_embd, c.n_embd) for letter in "qkv"}
    matrices = qkv | {
        "attn_output": (c.n_embd, c.n_embd),
        "ffn_up": (c.n_embd, c.n_ff),
        "ffn_down": (c.n_ff, c.n_embd),
    }
    if is_nomic:
        matrices["ffn_gate"] = (c.n_embd, c.n_ff)
    norms = ["token_embd_norm"]
    for il in range(c.n_layer):
        norms += [f"blk.{il}.attn_output_norm", f"blk.{il}.layer_output_norm"]
        for name, ne in matrices.items():
            yield f"blk.{il}.{name}.weight", ne, "matrix"
            if not is_nomic:
                yield f"blk.{il}.{name}.bias", ne[1:], "bias"
    for name in norms:
        yield f"{name}.weight", (c.n_embd,), "norm"
        yield f"{name}.bias", (c.n_embd,), "bias"


def _common_layer(c: TinyConfig) -> tuple[TensorRow, ...]:
    n_q, n_kv = c.n_head * c.n_embd_head, c.n_head_kv * c.n_embd_head
    return (
        ("attn_norm.weight", (c.n_embd,), "norm"),
        ("attn_q.weight", (c.n_embd, n_q), "matrix"),
        ("attn_k.weight", (c.n_embd, n_kv), "matrix"),
        ("attn_v.weight", (c.n_embd, n_kv), "matrix"),
        ("attn_output.weight", (n_q, c.n_embd), "matrix"),
        ("ffn_norm.weight", (c.n_embd,), "norm"),
        ("ffn_gate.weight", (c.n_embd, c.n_ff), "matrix"),
        ("ffn_up.weight", (c.n_embd, c.n_ff), "matrix"),
        ("ffn_down.weight", (c.n_ff, c.n_embd), "matrix"),
    )


def _no_rows(c: TinyConfig) -> tuple[TensorRow, ...]:
    return ()


def _bias_rows(c: TinyConfig) -> tuple[TensorRow, ...]:
    n_q, n_kv = c.n_head * c.n_embd_head, c.n_head_kv * c.n_embd_head
    return (
        ("attn_q.bias", (n_q,), "bias"),
        ("attn_k.bias", (n_kv,), "bias"),
        ("attn_v.bias", (n_kv,), "bias"),
    )


def _head_norm_rows(c: TinyConfig) -> tuple[TensorRow, ...]:
    return (
        ("attn_q_norm.weight", (c.n_embd_head,), "norm"),
        ("attn_k_norm.weight", (c.n_embd_head,), "norm"),
    )


def _gemma_rows(c: TinyConfig) -> tuple[TensorRow, ...]:
    return (
        *_head_norm_rows(c),
        ("post_attention_norm.weight", (c.n_embd,), "norm"),
        ("post_ffw_norm.weight", (c.n_embd,), "norm"),
    )


_EXTRA_ROWS: Final[Mapping[str, Callable[[TinyConfig], tuple[TensorRow, ...]]]] = {
    "llama": _no_rows,
    "qwen2": _bias_rows,
    "qwen3": _head_norm_rows,
    "gemma3": _gemma_rows,
}


def _write_tensor(
    writer: GGUFWriter,
    name: str,
    ne: tuple[int, ...],
    kind: str,
    config: TinyConfig,
    rng: np.random.Generator,
) -> None:
    if len(ne) == 1:
        mean = 1.0 if kind == "norm" else 0.0
        values = mean + 0.2 * rng.standard_normal(ne[0])
        writer.add_tensor(name, values.astype(np.float32))
        return
    matched = (type_ for glob, type_ in config.types.items() if fnmatchcase(name, glob))
    type_ = next(matched, GGMLType.F32)
    std = 0.4 if kind == "embedding" else 1.5 / float(np.sqrt(ne[0]))
    rows = random_rows(type_, ne[1], ne[0], rng, std)
    raw_dtype = GGMLQuantizationType(type_)
    if type_ == GGMLType.F32:
        writer.add_tensor(name, rows.view(np.float32))
    elif type_ == GGMLType.F16:
        writer.add_tensor(name, rows.view(np.float16))
    else:
        writer.add_tensor(name, rows, raw_dtype=raw_dtype)
