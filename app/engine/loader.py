"""From a model file and a pool of devices to stages that are ready to run.

The order matters: everything that can be refused is refused before a byte is sent (types,
architecture, tensors, tokenizer, sizes, devices, placement), then memory is taken, then weights are
sent.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from app.devices.base import Device
from app.engine.config import EngineConfig, FlashAttention
from app.engine.embedding import TokenEmbedding
from app.engine.facade import ModelInfo
from app.engine.kv_cache import KVCache
from app.engine.kv_rows import KVRows
from app.engine.load_progress import Progress
from app.engine.model_facts import model_info
from app.engine.overrides import with_overrides
from app.engine.placement import (
    HOST,
    MIB,
    LayerCost,
    Placement,
    PlacementRequest,
    Target,
    place,
    table,
)
from app.engine.pool import Pool, open_pool
from app.engine.pooling import PoolingMode, settle_pooling, worst_shapes
from app.engine.runner import Runner
from app.engine.sizes import RunSizes, settle
from app.engine.stage import CacheSizes, ModelSpec, Stage, cache_tensors
from app.engine.weights import alloc_weights, send_weights, stage_weights, weight_bytes
from app.errors import ConfigError, UnsupportedError
from app.ggml.gguf_file import GGUFFile, Metadata, TensorInfo, unsupported_types
from app.ggml.planner import plan_memory
from app.ggml.tensor import new_tensor
from app.ggml.types import TRAITS
from app.models.base import Architecture, TensorSpec
from app.models.hparams import HParams
from app.models.inputs import StageShape
from app.models.registry import get_architecture
from app.models.stage import build_stage
from app.models.tensors import check_tensors
from app.rpc_backend.weight_hashes import FileIdentity, HashStore, WeightHashes
from app.tokenizer.base import Tokenizer
from app.tokenizer.factory import load_tokenizer

log = logging.getLogger(__name__)

MARGIN = 64 * MIB
PLAN_ALIGNMENT = 128


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A checked file: what it is and what it needs."""

    gguf: GGUFFile
    metadata: Metadata
    arch: Architecture
    hparams: HParams
    specs: tuple[TensorSpec, ...]
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its devices."""

    info: ModelInfo
    hparams: HParams
    tokenizer: Tokenizer
    sizes: RunSizes
    pooling: PoolingMode
    cache: KVCache
    kv_rows: KVRows
    runner: Runner
    pool: Pool
    gguf: GGUFFile
    placement_table: str

    def close(self) -> None:
        """Free the devices and the file."""
        self.pool.close()
        self.gguf.close()


def load_model(
    config: EngineConfig, progress: Progress, said: Callable[[str], None]
) -> LoadedModel:
    """Load `config.model_path` onto the pool; `said` gets what people should read.

    Raises: LlamaServeError.
    """
    file = open_model(config)
    try:
        return _load(config, file, progress, said)
    except BaseException:
        file.gguf.close()
        raise


def open_model(config: EngineConfig) -> ModelFile:
    """Open and check the model file; no device is touched.

    Raises: ModelFormatError, UnsupportedError.
    """
    gguf = GGUFFile.open(config.model_path)
    try:
        refused = unsupported_types(gguf)
        if refused:
            names = ", ".join(f"{t} ({len(n)} tensors, e.g. {n[0]})" for t, n in refused.items())
            raise UnsupportedError(f"{gguf.path}: tensor types that cannot be used here: {names}")
        arch = get_architecture(gguf.architecture)
        metadata = with_overrides(gguf.metadata, gguf.architecture, config)
        hparams = arch.hparams(metadata)
        specs = arch.tensors(hparams)
        check_tensors(gguf, specs)
        return ModelFile(gguf, metadata, arch, hparams, specs, load_tokenizer(metadata))
    except BaseException:
        gguf.close()
        raise


def _load(
    config: EngineConfig, file: ModelFile, progress: Progress, said: Callable[[str], None]
) -> LoadedModel:
    sizes = settle(config, file.hparams)
    pooling = settle_pooling(config, file.hparams, file.metadata, file.gguf.tensors)
    shapes = worst_shapes(sizes, pooling, embeds=config.embeds)
    model = _model_spec(config, file)
    pool = open_pool(config)
    try:
        request = _placement_request(config, file, model, sizes, pool, shapes)
        placement = place(request)
        if not file.hparams.causal:
            placement = _without_output(placement)
        plan = table(request, placement)
        said(plan)
        if config.rpc_endpoints and all(d == HOST for d in placement.device_of):
            said(
                "warning: --rpc is given, but nothing is placed on a worker (see -ngl and --device)"
            )
        stages = _make_stages(file, model, pool, placement)
        hashes = WeightHashes(
            FileIdentity.of(file.gguf.path, file.gguf.status), HashStore(config.hash_folder)
        )
        _fill_stages(file, stages, sizes, shapes, hashes, progress)
        causal = file.hparams.causal
        cache = KVCache(sizes.n_cells, sizes.n_cells_window, file.hparams.n_swa, causal=causal)
        embedding = TokenEmbedding(file.gguf)
        runner = Runner(stages, embedding, cache, sizes.n_ubatch)
        return LoadedModel(
            info=model_info(file.gguf, file.hparams, sizes, pooling.pooling),
            hparams=file.hparams,
            tokenizer=file.tokenizer,
            sizes=sizes,
            pooling=pooling,
            cache=cache,
            kv_rows=KVRows(stages, cache),
            runner=runner,
            pool=pool,
            gguf=file.gguf,
            placement_table=plan,
        )
    except BaseException:
        pool.close()
        raise


def _without_output(placement: Placement) -> Placement:
    """Keep what little stands behind the layers of an encoder with the last of them."""
    return Placement((*placement.device_of[:-1], placement.device_of[-2]))


def _model_spec(config: EngineConfig, file: ModelFile) -> ModelSpec:
    flash = config.flash_attn is not FlashAttention.OFF
    hparams = file.hparams
    for flag, type_, n in (
        ("-ctk", config.cache_type_k, hparams.n_embd_head_k),
        ("-ctv", config.cache_type_v, hparams.n_embd_head_v),
    ):
        if n % TRAITS[type_].block_size:
            raise ConfigError(
                f"{flag} {TRAITS[type_].name}: heads of {n} elements are not whole blocks of "
                f"{TRAITS[type_].block_size}"
            )
    if TRAITS[config.cache_type_v].is_quantized and not flash:
        raise ConfigError("-ctv with a quantised type needs flash attention: expected -fa on")
    return ModelSpec(file.arch, hparams, flash, config.cache_type_k, config.cache_type_v)


def _placement_request(
    config: EngineConfig,
    file: ModelFile,
    model: ModelSpec,
    sizes: RunSizes,
    pool: Pool,
    shapes: Sequence[StageShape],
) -> PlacementRequest:
    cells = CacheSizes(sizes.n_cells, sizes.n_cells_window)
    n_layer = file.hparams.n_layer
    costs = []
    for il in range(n_layer):
        weights = stage_weights(file.specs, file.gguf, range(il, il + 1), has_output=False)
        k, v = cache_tensors(model, range(il, il + 1), cells)
        costs.append(LayerCost(weight_bytes(weights), k[il].nbytes + v[il].nbytes))
    output = stage_weights(file.specs, file.gguf, range(0), has_output=True)
    costs.append(LayerCost(weight_bytes(output), 0))
    return PlacementRequest(
        costs=tuple(costs),
        scratch=max(_scratch_bytes(file, model, sizes, shape) for shape in shapes),
        devices=tuple(_target(device) for device in pool.devices),
        host=_host_target(),
        n_gpu_layers=config.n_gpu_layers,
        tensor_split=config.tensor_split,
        split_mode=config.split_mode,
        main_gpu=config.main_gpu,
        margin=MARGIN,
    )


def _target(device: Device) -> Target:
    return Target(device.info.name, device.info.description, device.memory().free)


def _host_target() -> Target:
    """The main host's CPU, asked without opening it as a device, which would import torch."""
    from app.devices.host_memory import host_memory

    return Target("CPU", "this host", host_memory().free)


def _scratch_bytes(file: ModelFile, model: ModelSpec, sizes: RunSizes, shape: StageShape) -> int:
    """Scratch of a stage, from the graph of the last layer and the output at a large step."""
    last = range(file.hparams.n_layer - 1, file.hparams.n_layer)
    infos = stage_weights(file.specs, file.gguf, last, has_output=True)
    k, v = cache_tensors(model, last, CacheSizes(sizes.n_cells, sizes.n_cells_window))
    weights = {name: new_tensor(info.type, info.ne, name) for name, info in infos.items()}
    staged = build_stage(
        model.arch,
        model.hparams,
        weights,
        k,
        v,
        shape,
        layers=last,
        is_first=last.start == 0,
        has_output=True,
        flash_attn=model.flash_attn,
    )
    return plan_memory(staged.graph, alignment=PLAN_ALIGNMENT).size


def _make_stages(
    file: ModelFile, model: ModelSpec, pool: Pool, placement: Placement
) -> list[Stage]:
    n_layer = file.hparams.n_layer
    stages = []
    for device, run in groupby(range(n_layer + 1), key=lambda i: placement.device_of[i]):
        indices = list(run)
        has_output = indices[-1] == n_layer
        layers = range(indices[0], indices[-1] + (0 if has_output else 1))
        place_on = pool.host if device == HOST else pool.devices[device]
        is_first = indices[0] == 0
        stages.append(Stage(model, place_on, layers, is_first=is_first, has_output=has_output))
    return stages


def _fill_stages(
    file: ModelFile,
    stages: list[Stage],
    sizes: RunSizes,
    shapes: Sequence[StageShape],
    hashes: WeightHashes,
    progress: Progress,
) -> None:
    filled: list[tuple[Stage, Mapping[str, TensorInfo]]] = []
    for stage in stages:
        infos = stage_weights(file.specs, file.gguf, stage.layers, has_output=stage.has_output)
        alloc_weights(stage, infos)
        stage.alloc_caches(CacheSizes(sizes.n_cells, sizes.n_cells_window))
        for shape in shapes:
            stage.reserve(shape)
        filled.append((stage, infos))
    send_weights(filled, file.gguf, hashes, progress)
