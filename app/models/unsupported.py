"""Metadata keys that change what a model computes and that no architecture here honours.

A file that has one of them with anything but its neutral value is refused: running it would give
other results than its makers meant. Keys that an architecture does honour are named in its call.
"""

import reprlib
from typing import Final

import numpy as np

from app.errors import UnsupportedError
from app.ggml.gguf_file import Metadata

NEUTRAL: Final[dict[str, tuple[float, ...]]] = {
    "attention.causal": (1,),
    "attention.clamp_kqv": (0,),
    "attention.kv_lora_rank": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.q_lora_rank": (0,),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.sliding_window": (0,),
    "attention.temperature_length": (0,),
    "attn_logit_softcapping": (0,),
    "classifier.pooling_type": (-1, 2, 3),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "num_loops": (0, 1),
    "residual_scale": (0, 1),
    "rope.dimension_sections": (0,),
    "rope.scaling.alpha": (0,),
    "rope.scaling.yarn_log_multiplier": (0,),
    "swiglu_clamp_shexp": (0,),
    "use_parallel_residual": (0,),
}


def refuse_unsupported(metadata: Metadata, arch: str, *, honoured: frozenset[str]) -> None:
    """Refuse a file that asks for what is not computed here; `honoured` holds key suffixes.

    Raises: UnsupportedError naming all such keys.
    """
    problems = []
    for suffix, neutral in NEUTRAL.items():
        value = metadata.get(f"{arch}.{suffix}")
        if value is None or suffix in honoured or _is_neutral(value, neutral):
            continue
        problems.append(
            f"metadata key '{arch}.{suffix}' is {reprlib.repr(value)}: expected {neutral[0]}"
        )
    if problems:
        raise UnsupportedError("; ".join(problems))


def _is_neutral(value: object, neutral: tuple[float, ...]) -> bool:
    if isinstance(value, np.ndarray):
        return bool(np.isin(value, neutral).all())
    return isinstance(value, int | float) and float(value) in neutral
