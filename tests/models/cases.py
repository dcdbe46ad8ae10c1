"""Tiny models, one row per architecture and per feature that its metadata can switch on; the tests
of this folder run over the table.

Windows are 16 of some 40 tokens and trained contexts shorter than that where positions are scaled,
so that a wrong mask or rotation shows in the logits.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.ggml.gguf_file import MetaValue
from tests.helpers.tiny_gguf import TinyConfig

N_VOCAB: Final = 512  # of the tokenizer that tiny models copy
TOKENS: Final = (1, *(int(t) for t in np.random.default_rng(7).integers(3, N_VOCAB, 39)))


def _random(seed: int, shapes: Mapping[str, int], mean: float) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {
        name: (mean + 0.3 * rng.standard_normal(n)).astype(np.float32) for name, n in shapes.items()
    }


def _llama_biases() -> dict[str, NDArray[np.float32]]:
    sizes = {"attn_q": 64, "attn_k": 32, "attn_v": 32, "attn_output": 64}
    sizes |= {"ffn_gate": 128, "ffn_up": 128, "ffn_down": 64}
    shapes = {f"blk.{il}.{name}.bias": n for il in range(2) for name, n in sizes.items()}
    return _random(1, shapes, 0.0)


def _scaling(arch: str, kind: str, factor: float, **more: MetaValue) -> dict[str, MetaValue]:
    keys: dict[str, MetaValue] = {"type": kind, "factor": factor, **more}
    return {f"{arch}.rope.scaling.{key}": value for key, value in keys.items()}


CASES: Final[dict[str, TinyConfig]] = {
    "llama": TinyConfig("llama"),
    "llama-biases": TinyConfig("llama", tied=False, extra_tensors=_llama_biases()),
    "llama-factors": TinyConfig(
        "llama", extra_tensors=_random(2, {"rope_freqs.weight": 8}, 3.0), rope_freq_base=500000.0
    ),
    "llama-linear": TinyConfig("llama", extra=_scaling("llama", "linear", 4.0)),
    "llama-unscaled": TinyConfig("llama", extra=_scaling("llama", "none", 4.0)),
    "qwen2": TinyConfig(
        "qwen2", tied=False, extra_tensors=_random(3, {"output.bias": N_VOCAB}, 0.0)
    ),
    "qwen3": TinyConfig("qwen3", head_dim=32, n_head_kv=1),
    "qwen3-yarn": TinyConfig(
        "qwen3",
        head_dim=64,
        extra=_scaling("qwen3", "yarn", 4.0, original_context_length=16, attn_factor=1.1),
    ),
    "gemma3": TinyConfig("gemma3", n_layer=4, head_dim=32),
    "gemma3-full": TinyConfig("gemma3", head_dim=32, sliding_window=0),
    "gemma3-scaled": TinyConfig(
        "gemma3",
        n_layer=5,
        swa_pattern=3,
        head_dim=32,
        rope_freq_base=1e6,
        extra={
            **_scaling("gemma3", "linear", 8.0),
            "gemma3.rope.freq_base_swa": 5000.0,
            "gemma3.final_logit_softcapping": 3.0,
        },
    ),
    "gemma3-yarn": TinyConfig(
        "gemma3",
        n_layer=3,
        head_dim=32,
        extra=_scaling("gemma3", "yarn", 8.0, original_context_length=32),
    ),
}
