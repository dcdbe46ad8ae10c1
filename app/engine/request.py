"""What crosses the border between the HTTP room and the engine: requests in, events out.

A `GenerationRequest` asks for one completion of one tokenised prompt; several choices are several
requests. With `embeds` it asks for the prompt's embedding instead and gets `Embedded` in place of
pieces. Its events come in order: `Started`, any number of `PromptProgress`, any number of
`Piece`, then exactly one `Finished` or `Failed`. The text of pieces never holds part of a stop
string or half a character, and the pieces joined are the whole text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from app.sampling.logprobs import TokenLogprobs
from app.sampling.params import SamplingParams


class StopReason(Enum):
    """Why a generation ended."""

    EOS = "eos"
    LIMIT = "limit"
    WORD = "word"


class GrammarKind(Enum):
    """The language of a constraint."""

    GBNF = "gbnf"
    JSON_SCHEMA = "json_schema"
    LARK = "lark"
    """The grammar engine's own; written by this server, never by a client."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Text that a grammar waits for; not looked for inside reasoning.

    Reasoning goes from `thought_start`, or the beginning if `in_thought`, to `thought_end`; both
    are empty for a model that does not reason.
    """

    word: str
    thought_start: str = ""
    thought_end: str = ""
    in_thought: bool = False


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the generated text, from the beginning or from its trigger on."""

    kind: GrammarKind
    source: str
    trigger: Trigger | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """How many tokens a model may reason: from `start`, or the beginning if `opened`, to `end`.

    `closing` are the tokens that end it when there are enough.
    """

    limit: int
    start: str
    end: str
    closing: tuple[int, ...]
    opened: bool


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and how to continue it; -1 in `n_predict` means until the end of the context.

    `shown_tokens` are control tokens that are written out even where `special` ones are not.
    """

    prompt: Sequence[int]
    sampling: SamplingParams
    n_predict: int = -1
    n_keep: int = 0
    n_discard: int = 0
    n_indent: int = 0
    t_max_predict_ms: int = -1
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    cache_prompt: bool = True
    id_slot: int = -1
    return_progress: bool = False
    embeds: bool = False
    special: bool = False
    shown_tokens: frozenset[int] = frozenset()
    thinking: Thinking | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Counts and times of one generation so far; times in milliseconds."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float


@dataclass(frozen=True, slots=True)
class Started:
    """The request has a slot; prompt processing begins."""

    id_slot: int
    n_prompt_tokens: int
    n_cached_tokens: int


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How much of the prompt is processed, cached tokens included; sent when asked for."""

    total: int
    cache: int
    processed: int
    time_ms: float


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that can be shown now, with the tokens that it came from and their log-probabilities."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    n_decoded: int
    timings: Timings


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """What the model makes of the prompt, pooled as the engine is told: (n_rows, n), one row unless
    nothing is pooled.
    """

    rows: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Finished:
    """The generation is complete."""

    reason: StopReason
    stopping_word: str
    truncated: bool
    has_new_line: bool
    n_prompt_tokens: int
    n_cached_tokens: int
    n_decoded: int
    n_past: int
    timings: Timings


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation could not go on; `error` is one of app.errors."""

    error: Exception


Event = Started | PromptProgress | Piece | Embedded | Finished | Failed


class SlotDeed(Enum):
    """What is done to a slot."""

    SAVE = "save"
    RESTORE = "restore"
    ERASE = "erase"


@dataclass(frozen=True, slots=True)
class SlotAction:
    """A request about a slot rather than for text; `path` is the file, unused to erase."""

    deed: SlotDeed
    id_slot: int
    path: Path


@dataclass(frozen=True, slots=True)
class SlotReport:
    """What was done: tokens saved, restored or erased, the size of the file, milliseconds."""

    id_slot: int
    n_tokens: int
    n_bytes: int
    ms: float
