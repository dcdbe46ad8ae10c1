"""One step of the engine: which tokens of which sequences are computed together, and what comes
back.

The scheduler makes a `StepPlan`; the runner cuts it into `MicroBatch`es, gives their tokens cache
cells and sends them through the stages. A sequence whose last planned token wants logits gets one
row of them in the `StepResult`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from app.models.inputs import Ending, StageShape


class Pick(Enum):
    """Which tokens of a chunk give a row of the result."""

    LAST = "last"
    FIRST = "first"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class SequenceChunk:
    """Tokens of one sequence from position `n_past` on; those of `pick` may want results, which are
    logits unless the plan says otherwise.
    """

    seq: int
    tokens: Sequence[int]
    n_past: int
    wants_logits: bool
    pick: Pick = Pick.LAST


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes; at most one chunk per sequence.

    A chunk of which more than the last token is picked must fit into one micro-batch.
    """

    chunks: tuple[SequenceChunk, ...]
    ending: Ending = Ending.LOGITS

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
    output_seqs: tuple[int, ...]  # sequence of each output row
    shape: StageShape


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step computed, by sequence: logits (n_vocab,), how many tokens were processed, and
    rows (n_rows, n) where the plan ends in something else than logits.
    """

    logits: Mapping[int, npt.NDArray[np.float32]]
    processed: Mapping[int, int]
    hidden: Mapping[int, npt.NDArray[np.float32]] = field(default_factory=dict)
