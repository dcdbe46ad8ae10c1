"""Rotary position parameters from `<arch>.rope.*`, by the rules of llama.cpp.

The file's scaling type is none, linear or yarn; anything else is refused, because positions would
silently be wrong. With yarn, ROPE itself multiplies magnitudes by 1 + 0.1 ln(factor), so the
attention factor is divided by the same amount and only `rope.scaling.attn_factor` is left. Follows
llama-model.cpp (load_hparams) and llama-context.cpp of llama.cpp b11434.
"""

import math
import reprlib
from typing import Final

from app.errors import UnsupportedError
from app.ggml.gguf_file import Metadata
from app.ggml.op_params import RopeParams
from app.ggml.ops import RopeMode
from app.models.metadata import f32, size, text, wrong_value

SCALING_TYPES: Final = ("none", "linear", "yarn")
MIN_FACTOR: Final = 1e-3
MAX_FACTOR: Final = 1e6
BETA_FAST: Final = 32.0
BETA_SLOW: Final = 1.0
MIN_FREQ_BASE: Final = 2.0
DEFAULT_FREQ_BASE: Final = 10000.0


def read_rope(
    metadata: Metadata, arch: str, *, n_dims: int, mode: RopeMode, n_ctx_train: int
) -> RopeParams:
    """Read the rotary parameters of full-attention layers.

    Raises: ModelFormatError, UnsupportedError.
    """
    scaling = text(metadata, f"{arch}.rope.scaling.type", "linear")
    if scaling not in SCALING_TYPES:
        raise UnsupportedError(
            f"metadata key '{arch}.rope.scaling.type' is {reprlib.repr(scaling)}: "
            f"expected one of {', '.join(SCALING_TYPES)}"
        )
    factor = 1.0 if scaling == "none" else _scaling_factor(metadata, arch)
    attn_key = f"{arch}.rope.scaling.attn_factor"
    attn_factor = f32(metadata, attn_key, 1.0)
    if not 0.0 < attn_factor <= MAX_FACTOR:
        raise wrong_value(attn_key, attn_factor, f"a number above 0, at most {MAX_FACTOR:g}")
    yarn = f"{arch}.rope.scaling.yarn"
    ext_factor = _given(metadata, f"{yarn}_ext_factor", 1.0 if scaling == "yarn" else 0.0)
    if ext_factor:
        attn_factor *= _yarn_magnitude(factor)
    else:
        attn_factor *= _given(metadata, f"{yarn}_attn_factor", 1.0)
    return RopeParams(
        n_dims=n_dims,
        mode=mode,
        n_ctx_orig=size(metadata, f"{arch}.rope.scaling.original_context_length", n_ctx_train),
        freq_base=read_freq_base(metadata, f"{arch}.rope.freq_base"),
        freq_scale=1.0 / factor,
        ext_factor=ext_factor,
        attn_factor=attn_factor,
        beta_fast=_given(metadata, f"{yarn}_beta_fast", BETA_FAST),
        beta_slow=_given(metadata, f"{yarn}_beta_slow", BETA_SLOW),
    )


def _given(metadata: Metadata, key: str, default: float) -> float:
    """A yarn value; a negative one says "not set", as llama.cpp's own defaults do."""
    value = f32(metadata, key, -1.0)
    return default if value < 0 else value


def read_freq_base(metadata: Metadata, key: str) -> float:
    """Read the base of the angles; 10000 when it is absent.

    Raises: ModelFormatError.
    """
    base = f32(metadata, key, DEFAULT_FREQ_BASE)
    if base < MIN_FREQ_BASE:
        raise wrong_value(key, base, f"a number from {MIN_FREQ_BASE:g} on")
    return base


def _scaling_factor(metadata: Metadata, arch: str) -> float:
    key = f"{arch}.rope.scaling.factor"
    if key not in metadata:
        key = f"{arch}.rope.scale_linear"
    factor = f32(metadata, key, 1.0)
    if factor == 0.0:
        return 1.0
    if not MIN_FACTOR <= factor <= MAX_FACTOR:
        raise wrong_value(key, factor, f"0 or a number from {MIN_FACTOR:g} to {MAX_FACTOR:g}")
    return factor


def _yarn_magnitude(factor: float) -> float:
    """The attention factor that cancels the one inside ROPE."""
    inside = 1.0 + 0.1 * math.log(factor)
    return max(inside, 1.0) / inside
