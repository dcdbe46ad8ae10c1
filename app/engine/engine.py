"""The engine: one thread that loads the model, then plans, runs and applies steps for as long as it
lives.

All engine state belongs to that thread. Other threads hand it requests through an inbox and get
events through queues of their own asyncio loop. When a device is lost, the requests that it held
end with an error that names it, the state becomes FAILED for all to see, and the model is loaded
again as soon as the pool can hold it.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import count

from app.devices.profile import profile_text, start_profiles
from app.engine.admission import build_sampler, check_request
from app.engine.config import EngineConfig
from app.engine.counters import Counters
from app.engine.errors import EngineUnavailableError
from app.engine.facade import EngineState, EngineStats, ModelInfo, SlotInfo
from app.engine.loader import LoadedModel, load_model
from app.engine.output import LineLimits, TextAssembler
from app.engine.post import EventPost
from app.engine.request import Event, Failed, Finished, GenerationRequest
from app.engine.scheduler import Scheduler
from app.engine.slots import Slot, slot_info
from app.engine.step import SequenceChunk, StepPlan
from app.engine.task import Task, now
from app.engine.token_sampler import SamplingVocabulary
from app.errors import DeviceLostError, LlamaServeError
from app.models.inputs import Ending
from app.sampling.chain import SamplerFactory
from app.tokenizer.base import Tokenizer

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
RELOAD_DELAYS_S = (1.0, 2.0, 5.0, 10.0, 30.0)


class LlamaGeneration:
    """A running request, seen from the asyncio loop that submitted it."""

    def __init__(self, task_id: int, post: EventPost, wake: Callable[[], None]) -> None:
        self.id = task_id
        self.task: Task | None = None
        self._post = post
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def emit(self, event: Event) -> None:
        """Deliver an event; called from the engine thread."""
        self._post.send(self._loop, self._queue.put_nowait, event)

    async def events(self) -> AsyncIterator[Event]:
        """Yield events in order until Finished or Failed."""
        while True:
            event = await self._queue.get()
            yield event
            if isinstance(event, Finished | Failed):
                return

    def cancel(self) -> None:
        """Stop as soon as possible; no event follows. Does nothing when it is over."""
        assert self.task is not None
        self.task.cancelled = True
        self._wake()


class LlamaEngine:
    """Implements `app.engine.facade.Engine`."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        progress: Callable[[int, int], None] = lambda sent, total: None,
        said: Callable[[str], None] = log.info,
    ) -> None:
        self._config = config
        self._progress = progress
        self._said = said
        self._state = EngineState.LOADING
        self._error = ""
        self._model: LoadedModel | None = None
        self._scheduler: Scheduler | None = None
        self._samplers: SamplerFactory | None = None
        self._counters = Counters()
        self._ids = count()
        self._inbox: deque[Task] = deque()
        self._wake = threading.Condition()
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._post = EventPost()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._post.start()
        self._thread.start()

    def wait_settled(self, timeout: float | None = None) -> EngineState:
        """Wait until loading has ended one way or the other."""
        self._settled.wait(timeout)
        return self._state

    @property
    def state(self) -> EngineState:
        """Whether requests can be served now."""
        return self._state

    @property
    def error(self) -> str:
        """Why the state is FAILED, or an empty text."""
        return self._error

    @property
    def model(self) -> ModelInfo:
        """Facts about the model; only once READY."""
        return self._loaded().info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; only once READY."""
        return self._loaded().tokenizer

    @property
    def n_slots(self) -> int:
        """Number of slots."""
        return self._loaded().sizes.n_parallel

    async def submit(self, request: GenerationRequest) -> LlamaGeneration:
        """Queue a request; what takes long, such as reading a grammar, is done in a thread.

        Raises: RequestError, ContextExceededError, InputTooLargeError, UnsupportedError,
        EngineUnavailableError.
        """
        if self._state is not EngineState.READY:
            raise EngineUnavailableError(self._error or f"the model is {self._state.value}")
        model = self._loaded()
        check_request(request, model)
        assert self._samplers is not None
        if request.grammar is None and not request.sampling.dry_multiplier:
            sampler = build_sampler(request, model, self._samplers)
        else:
            sampler = await asyncio.to_thread(build_sampler, request, model, self._samplers)
        generation = LlamaGeneration(next(self._ids), self._post, self._notify)
        generation.task = Task(
            id=generation.id,
            request=request,
            sampler=sampler,
            emit=generation.emit,
            assembler=TextAssembler(request.stop),
            limits=LineLimits(request.n_indent, request.t_max_predict_ms),
            tokens=list(request.prompt),
        )
        self._inbox.append(generation.task)
        self._notify()
        return generation

    def slots(self) -> tuple[SlotInfo, ...]:
        """Snapshot of all slots."""
        scheduler = self._scheduler
        return tuple(slot_info(slot) for slot in scheduler.slots) if scheduler else ()

    def stats(self) -> EngineStats:
        """Snapshot of the counters."""
        scheduler, model = self._scheduler, self._model
        processing = sum(s.task is not None for s in scheduler.slots) if scheduler else 0
        deferred = len(self._inbox) + (len(scheduler.waiting) if scheduler else 0)
        workers = model.pool.worker_stats() if model else ()
        return self._counters.snapshot(processing, deferred, workers)

    def stop(self) -> None:
        """Cancel everything, release the devices, end the thread."""
        self._stopping.set()
        self._notify()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)
        self._post.close(STOP_TIMEOUT_S)

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify_all()

    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise EngineUnavailableError(self._error or f"the model is {self._state.value}")
        return self._model

    def _main(self) -> None:
        attempt = 0
        while not self._stopping.is_set():
            try:
                self._load()
                attempt = 0
                self._serve()
            except DeviceLostError as error:
                log.error("device lost: %s", error)
                is_first_load = self._scheduler is None
                self._fail(error)
                if is_first_load:
                    return
                delay = RELOAD_DELAYS_S[min(attempt, len(RELOAD_DELAYS_S) - 1)]
                attempt += 1
                self._stopping.wait(delay)
            except LlamaServeError as error:
                self._fail(error)
                return
            except Exception as error:
                log.exception("the engine ended unexpectedly")
                self._fail(error)
                return
        self._close()
        self._state = EngineState.STOPPED

    def _load(self) -> None:
        model = load_model(self._config, self._progress, self._said)
        self._model = model
        vocabulary = SamplingVocabulary(model.tokenizer, model.hparams.n_vocab)
        self._samplers = SamplerFactory(vocabulary)
        slots = [Slot(i, model.sizes.n_ctx_slot) for i in range(model.sizes.n_parallel)]
        self._scheduler = Scheduler(
            slots,
            model.cache,
            model.tokenizer,
            self._counters,
            n_batch=model.sizes.n_batch,
            n_ubatch=model.sizes.n_ubatch,
            similarity=self._config.slot_prompt_similarity,
            pooling=model.pooling,
            context_shift=self._config.context_shift,
        )
        if self._config.warmup:
            self._warm_up(model)
        if self._config.profile:
            start_profiles(model.pool.opened)
        self._error, self._state = "", EngineState.READY
        self._settled.set()

    def _warm_up(self, model: LoadedModel) -> None:
        """Run one token through every stage, so that a first request finds all in place."""
        token = model.tokenizer.vocab.special.bos or 0
        ending = Ending.LOGITS if model.hparams.causal else model.pooling.ending
        model.runner.run(StepPlan((SequenceChunk(0, [token], 0, True),), ending))
        model.cache.truncate(0, 0)

    def _serve(self) -> None:
        scheduler, model = self._scheduler, self._model
        assert scheduler is not None and model is not None
        while not self._stopping.is_set():
            while self._inbox:
                scheduler.waiting.append(self._inbox.popleft())
            plan = scheduler.plan()
            if not plan.chunks:
                with self._wake:
                    if not self._inbox and not self._stopping.is_set() and scheduler.is_idle:
                        self._wake.wait()
                continue
            start = now()
            result = model.runner.run(plan, scheduler.any_cancelled)
            scheduler.apply(plan, result, now() - start)

    def _fail(self, error: Exception) -> None:
        self._error, self._state = str(error), EngineState.FAILED
        if self._scheduler is not None:
            self._scheduler.waiting.extend(self._inbox)
            self._inbox.clear()
            self._scheduler.fail_all(error)
        self._close()
        self._settled.set()

    def _close(self) -> None:
        if self._model is not None:
            if self._config.profile:
                for device in self._model.pool.opened:
                    self._said(profile_text(device))
            self._model.close()
            self._model = None
