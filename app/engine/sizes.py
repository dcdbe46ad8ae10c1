"""Settles the sizes of a run: context, slots, batches, cells; "auto" becomes a number here and is
logged.

The rules are llama-server's (b11434): a context of 0 means the model's own; without a number of
slots there are four that share one pool; with one, each slot gets its part unless `--kv-unified`
says to share; no slot exceeds what the model was trained for.
"""

import logging
from dataclasses import dataclass

from app.engine.config import AUTO_SLOTS, EngineConfig
from app.engine.kv_cache import KV_PADDING, window_cells
from app.errors import ConfigError
from app.models.hparams import HParams

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Numbers that follow from flags and model."""

    n_parallel: int
    n_ctx_slot: int
    n_cells: int
    n_cells_window: int
    n_batch: int
    n_ubatch: int
    unified: bool = False


def settle(config: EngineConfig, hparams: HParams) -> RunSizes:
    """Choose all sizes.

    Raises: ConfigError naming the flag that makes no sense.
    """
    for flag, value in (("-b", config.n_batch), ("-ub", config.n_ubatch)):
        if value < 1:
            raise ConfigError(f"{flag} {value}: expected at least 1")
    if config.n_ctx < 0 or config.n_parallel < -1 or config.n_parallel == 0:
        raise ConfigError(
            f"-c {config.n_ctx} -np {config.n_parallel}: expected a context of 0 or more and "
            "at least one slot"
        )
    if not config.kv_offload:
        log.warning("-nkvo is not supported: each layer's KV cache stays on the layer's device")
    is_auto = config.n_parallel == -1
    n_parallel = AUTO_SLOTS if is_auto else config.n_parallel
    unified = is_auto if config.kv_unified is None else config.kv_unified
    n_ctx = _pad(config.n_ctx or hparams.n_ctx_train)
    n_ctx_slot = n_ctx if unified else _pad(n_ctx // n_parallel)
    n_cells = n_ctx if unified else n_ctx_slot * n_parallel
    if n_ctx_slot > hparams.n_ctx_train:
        log.warning(
            "a slot's context of %d tokens exceeds the %d that the model was trained for; capped",
            n_ctx_slot,
            hparams.n_ctx_train,
        )
        n_ctx_slot = hparams.n_ctx_train
    n_batch = min(config.n_batch, n_cells)
    n_ubatch = min(config.n_ubatch, n_batch)
    has_window = any(hparams.is_swa)
    n_window = window_cells(hparams.n_swa, n_ubatch, n_parallel, n_cells) if has_window else 0
    sizes = RunSizes(
        n_parallel=n_parallel,
        n_ctx_slot=n_ctx_slot,
        n_cells=n_cells,
        n_cells_window=n_cells if has_window and config.swa_full else n_window,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        unified=unified,
    )
    log.info(
        "%d slots of %d tokens%s; KV cache of %d cells%s; batch %d, micro-batch %d",
        n_parallel,
        n_ctx_slot,
        " that share one pool" if unified else "",
        n_cells,
        f" and {sizes.n_cells_window} for window layers" if has_window else "",
        n_batch,
        n_ubatch,
    )
    return sizes


def _pad(n: int) -> int:
    return max(KV_PADDING, -(-n // KV_PADDING) * KV_PADDING)
