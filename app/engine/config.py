"""What the engine is asked to do: every choice that a user may make, as given; "auto" values are
settled at load.

Built in `app.cli.options` and nowhere else.
"""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from app.ggml.types import GGMLType
from app.models.hparams import Pooling
from app.rpc_backend.streams.settings import ClientTls

AUTO_SLOTS = 4


class SplitMode(Enum):
    """How a model is spread over devices."""

    NONE = "none"
    LAYER = "layer"


class CpuExecutor(Enum):
    """What runs graphs on the host's own CPU."""

    NATIVE = "native"
    REFERENCE = "reference"


class FlashAttention(Enum):
    """Whether attention is one fused operation."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class RopeOverrides:
    """Rope values that replace the file's; None leaves the file's."""

    scaling: str | None = None
    scale: float | None = None
    freq_base: float | None = None
    freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One model, the devices to put it on, and the sizes of the run.

    `cache_ram_mib` -1 means no limit, 0 no memory; `sleep_idle_s` None means never. Weights of
    `hash_min_bytes` and more are offered to workers by hash; hashes are kept in `hash_folder`.
    """

    model_path: Path
    rpc_endpoints: tuple[str, ...] = ()
    rpc_secret: bytes | None = field(default=None, repr=False)
    rpc_tls: ClientTls | None = None
    hash_min_bytes: int | None = None
    hash_folder: Path | None = None
    devices: tuple[str, ...] | None = None
    n_gpu_layers: int | None = None
    split_mode: SplitMode = SplitMode.LAYER
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    n_ctx: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_parallel: int = -1
    kv_unified: bool | None = None
    kv_offload: bool = True
    swa_full: bool = False
    cache_type_k: GGMLType = GGMLType.F16
    cache_type_v: GGMLType = GGMLType.F16
    flash_attn: FlashAttention = FlashAttention.AUTO
    cpu_executor: CpuExecutor = CpuExecutor.NATIVE
    cpu_level: str | None = None
    threads: int | None = None
    threads_batch: int | None = None
    slot_prompt_similarity: float = 0.1
    context_shift: bool = False
    cache_ram_mib: int = 0
    cache_idle_slots: bool = True
    sleep_idle_s: float | None = None
    embeds: bool = False
    pooling: Pooling | None = None
    warmup: bool = True
    profile: bool = False
    rope: RopeOverrides = field(default_factory=RopeOverrides)
    override_kv: tuple[tuple[str, bool | int | float | str], ...] = ()
