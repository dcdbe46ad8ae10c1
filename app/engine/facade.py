"""The engine as the HTTP room sees it: a protocol, so that the room can be tested on a fake.

All methods but the coroutines may be called from any thread and return at once. `submit` gives a
`Generation`, whose events are read from one asyncio task; leaving it (`cancel`) frees the slot
within one step, wherever the request is: queue, prefill or decode.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from app.engine.request import Event, GenerationRequest, SlotAction, SlotReport
from app.models.hparams import Pooling
from app.tokenizer.base import Tokenizer


class EngineState(Enum):
    """Whether the engine can serve."""

    LOADING = "loading"
    READY = "ready"
    SLEEPING = "sleeping"
    """The model is unloaded until somebody needs it; facts about it are still known."""
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about the loaded model; `n_ctx` is what one slot may hold, `size` is bytes of all
    tensors.
    """

    path: str
    arch: str
    name: str
    ftype: str
    vocab_type: int
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    chat_template: str | None
    pooling: Pooling = Pooling.NONE
    rerank_template: str | None = None


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One slot; the fields after `is_processing` speak of its current or last request."""

    id: int
    n_ctx: int
    is_processing: bool
    id_task: int
    n_prompt_tokens: int
    n_prompt_tokens_processed: int
    n_prompt_tokens_cache: int
    request: GenerationRequest | None
    n_decoded: int
    n_remain: int
    has_next_token: bool
    has_new_line: bool


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One remote device: whether it answers, bytes each way, last round trip in seconds."""

    name: str
    endpoint: str
    up: bool
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since start (seconds, tokens, calls) and gauges of now."""

    prompt_tokens: int
    prompt_tokens_cached: int
    prompt_seconds: float
    predicted_tokens: int
    predicted_seconds: float
    n_decode: int
    n_tokens_max: int
    n_busy_slots: int
    requests_processing: int
    requests_deferred: int
    workers: tuple[WorkerStats, ...] = ()


class Generation(Protocol):
    """A running request."""

    @property
    def id(self) -> int:
        """Number of the task, unique in this process."""

    def events(self) -> AsyncIterator[Event]:
        """Yield events in order until Finished or Failed."""

    def cancel(self) -> None:
        """Stop as soon as possible; no event follows. Does nothing when it is over."""


class Engine(Protocol):
    """Loads one model and serves generations from it."""

    @property
    def state(self) -> EngineState:
        """Whether requests can be served now."""

    @property
    def error(self) -> str:
        """Why the state is FAILED, or an empty text."""

    @property
    def model(self) -> ModelInfo:
        """Facts about the model; only once READY."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; only once READY."""

    @property
    def n_slots(self) -> int:
        """Number of slots."""

    async def submit(self, request: GenerationRequest) -> Generation:
        """Queue a request on the running asyncio loop.

        Raises: RequestError, ContextExceededError, InputTooLargeError for what is known to be wrong
        at once, UnsupportedError for what the model cannot do.
        """

    async def wake(self) -> None:
        """Wait until a sleeping engine is awake, or failed to be; return at once for any other."""

    async def slot_action(self, action: SlotAction) -> SlotReport:
        """Save, restore or erase a slot as soon as it is idle.

        Raises: RequestError for what is wrong with slot or file, SlotFileError, DeviceLostError.
        """

    def slots(self) -> tuple[SlotInfo, ...]:
        """Snapshot of all slots."""

    def stats(self) -> EngineStats:
        """Snapshot of the counters."""

    def stop(self) -> None:
        """Cancel everything, release the devices, end the threads."""
