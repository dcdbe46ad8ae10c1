"""Applies what the command line says over the metadata of the file: `--override-kv` and the rope
flags.

Rope flags become the metadata keys that they stand for, so that the model definitions have one
source of truth.
"""

from app.engine.config import EngineConfig, RopeOverrides
from app.ggml.gguf_file import Metadata, MetaValue


def with_overrides(metadata: Metadata, arch: str, config: EngineConfig) -> Metadata:
    """Return the metadata as the model shall see it."""
    changed: dict[str, MetaValue] = dict(metadata)
    changed.update(_rope_keys(arch, config.rope))
    changed.update(dict(config.override_kv))
    return changed


def _rope_keys(arch: str, rope: RopeOverrides) -> dict[str, MetaValue]:
    scale = rope.scale
    if rope.freq_scale:
        scale = 1.0 / rope.freq_scale
    keys: dict[str, MetaValue | None] = {
        f"{arch}.rope.scaling.type": rope.scaling,
        f"{arch}.rope.scaling.factor": scale,
        f"{arch}.rope.freq_base": rope.freq_base,
        f"{arch}.rope.scaling.original_context_length": rope.yarn_orig_ctx,
        f"{arch}.rope.scaling.yarn_ext_factor": rope.yarn_ext_factor,
        f"{arch}.rope.scaling.yarn_attn_factor": rope.yarn_attn_factor,
        f"{arch}.rope.scaling.yarn_beta_slow": rope.yarn_beta_slow,
        f"{arch}.rope.scaling.yarn_beta_fast": rope.yarn_beta_fast,
    }
    return {key: value for key, value in keys.items() if value is not None}
