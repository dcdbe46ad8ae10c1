"""Embeddings: which rows of a text's hidden states are wanted, which texts are computed together,
and how rows become one vector.

The scheduler asks for a plan whenever texts wait to be embedded. A text whose every token, or whose
first, is wanted is computed in one micro-batch, as is any text of a model that looks ahead; only
where the last token of a causal model stands for the text may it be cut.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from app.engine.config import EngineConfig
from app.engine.errors import InputTooLargeError
from app.engine.sizes import RunSizes
from app.engine.slots import Slot
from app.engine.step import Pick, SequenceChunk, StepPlan
from app.engine.task import Task
from app.errors import ConfigError, ContextExceededError
from app.ggml.gguf_file import Metadata
from app.models.hparams import HParams, Pooling
from app.models.inputs import Ending, StageShape
from app.models.pooling import has_classifier, read_pooling

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PoolingMode:
    """How an engine embeds."""

    pooling: Pooling
    causal: bool

    @property
    def pick(self) -> Pick:
        """The tokens whose rows are wanted."""
        match self.pooling:
            case Pooling.NONE | Pooling.MEAN:
                return Pick.ALL
            case Pooling.CLS:
                return Pick.FIRST
            case Pooling.LAST:
                return Pick.LAST
            case Pooling.RANK:
                return Pick.LAST if self.causal else Pick.FIRST

    @property
    def ending(self) -> Ending:
        """What a graph for it ends in."""
        return Ending.RANK if self.pooling is Pooling.RANK else Ending.EMBEDDING

    @property
    def can_cut(self) -> bool:
        """Whether a text may pass in several micro-batches."""
        return self.causal and self.pick is Pick.LAST

    def pool(self, rows: Floats) -> Floats:
        """Turn the rows of a text (n_rows, n) into what stands for it."""
        if self.pooling is not Pooling.MEAN:
            return rows
        mean: Floats = rows.mean(axis=0, dtype=np.float64, keepdims=True).astype(np.float32)
        return mean


def settle_pooling(
    config: EngineConfig, hparams: HParams, metadata: Metadata, tensors: Container[str]
) -> PoolingMode:
    """Choose the pooling: the user's, else the model's; `tensors` are those of the file.

    Raises: ModelFormatError, ConfigError when a model without a classifier shall rank.
    """
    own = read_pooling(metadata, hparams.arch)
    pooling = own if config.pooling is None else config.pooling
    if config.embeds and pooling is Pooling.RANK and not has_classifier(tensors):
        raise ConfigError(
            f"{config.model_path}: the model has no classifier (tensors cls.*), so it cannot rank"
        )
    return PoolingMode(pooling, hparams.causal)


def worst_shapes(sizes: RunSizes, mode: PoolingMode, *, embeds: bool) -> tuple[StageShape, ...]:
    """Return the largest step of each kind that can come."""
    n, n_outputs = sizes.n_ubatch, min(sizes.n_parallel, sizes.n_ubatch)
    logits = StageShape(n, sizes.n_cells, sizes.n_cells_window, n_outputs)
    n_rows = n if mode.pick is Pick.ALL else n_outputs
    embedding = replace(logits, n_outputs=n_rows, ending=mode.ending)
    if not mode.causal:
        return (embedding,)
    return (logits, embedding) if embeds else (logits,)


def plan_embeddings(
    busy: Iterable[tuple[Slot, Task]], mode: PoolingMode, n_ubatch: int
) -> StepPlan:
    """Fill one micro-batch with the texts of tasks, oldest first."""
    chunks: list[SequenceChunk] = []
    room = n_ubatch
    for slot, task in sorted(busy, key=lambda pair: pair[1].id):
        done, n = len(slot.tokens), len(task.tokens) - len(slot.tokens)
        if not room or (n > room and not mode.can_cut):
            break
        n = min(n, room)
        is_whole = done + n == len(task.tokens)
        tokens = task.tokens[done : done + n]
        chunks.append(SequenceChunk(slot.id, tokens, done, is_whole, mode.pick))
        room -= n
    return StepPlan(tuple(chunks), mode.ending)


def check_input(n_tokens: int, mode: PoolingMode, sizes: RunSizes) -> None:
    """Refuse a text that no step can hold.

    Raises: InputTooLargeError, ContextExceededError.
    """
    if n_tokens > sizes.n_ubatch and not mode.can_cut:
        raise InputTooLargeError(
            f"input ({n_tokens} tokens) is too large to process. increase the physical batch size "
            f"(current batch size: {sizes.n_ubatch})"
        )
    if n_tokens > sizes.n_ctx_slot:
        raise ContextExceededError(
            f"input ({n_tokens} tokens) is larger than the max context size "
            f"({sizes.n_ctx_slot} tokens)",
            n_tokens,
            sizes.n_ctx_slot,
        )
