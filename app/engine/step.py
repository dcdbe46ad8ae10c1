"""One step of the engine: which tokens of which sequences are computed together, and what comes
back.

The scheduler makes a `StepPlan`; the runner cuts it into `MicroBatch`es, gives their tokens cache
cells and sends them through the stages. A sequence whose last planned token wants logits gets one
row of them in the `StepResult`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from app.models.inputs import StageShape


@dataclass(frozen=True, slots=True)
class SequenceChunk:
    """Tokens of one sequence from position `n_past` on; the last one may want logits."""

    seq: int
    tokens: Sequence[int]
    n_past: int
    wants_logits: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes; at most one chunk per sequence."""

    chunks: tuple[SequenceChunk, ...]

    @property
    def n_tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(len(chunk.tokens) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Up to `n_ubatch` tokens that pass a stage together; arrays are over tokens, or as said."""

    tokens: tuple[int, ...]
    positions: npt.NDArray[np.int32]
    cells_full: npt.NDArray[np.int64]
    mask_full: npt.NDArray[np.bool_]  # (n_tokens, n_kv)
    cells_window: npt.NDArray[np.int64]
    mask_window: npt.NDArray[np.bool_]  # (n_tokens, n_kv)
    output_rows: npt.NDArray[np.int32]  # (n_outputs,)
    output_seqs: tuple[int, ...]
    shape: StageShape


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step computed, by sequence: logits (n_vocab,) and how many tokens were processed."""

    logits: Mapping[int, npt.NDArray[np.float32]]
    processed: Mapping[int, int]
