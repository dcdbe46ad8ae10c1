"""The engine: one thread that loads the model, then plans, runs and applies steps for as long as it
lives.

All engine state belongs to that thread. Other threads hand it requests through an inbox and get
events through queues of their own asyncio loop. When a device is lost, the requests that it held
end with an error that names it, the state becomes FAILED for all to see, and the model is loaded
again as soon as the pool can hold it. With `sleep_idle_s` an engine that has nothing to do for so
long gives its devices back and is SLEEPING; a request, or `wake`, has the model loaded again.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count

from app.devices.profile import profile_text, start_profiles
from app.engine.admission import build_sampler, check_request
from app.engine.config import EngineConfig
from app.engine.counters import Counters
from app.engine.errors import EngineUnavailableError
from app.engine.facade import EngineState, EngineStats, ModelInfo, SlotInfo, WorkerStats
from app.engine.generation import LlamaGeneration
from app.engine.load_progress import Progress
from app.engine.loader import LoadedModel, load_model
from app.engine.output import LineLimits, TextAssembler
from app.engine.pool import Pool
from app.engine.post import EventPost
from app.engine.prompt_memory import PromptMemory
from app.engine.request import GenerationRequest, SlotAction, SlotReport
from app.engine.scheduler import Scheduler
from app.engine.slot_action import SlotActions
from app.engine.slots import Slot, slot_info
from app.engine.step import SequenceChunk, StepPlan
from app.engine.task import Task, now
from app.engine.token_sampler import SamplingVocabulary
from app.errors import DeviceLostError, LlamaServeError, RequestError
from app.models.inputs import Ending
from app.sampling.chain import SamplerFactory
from app.tokenizer.base import Tokenizer

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
RELOAD_DELAYS_S = (1.0, 2.0, 5.0, 10.0, 30.0)
LOOK_S = 1.0
"""How often an engine without work looks whether its workers are still there."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What is still known of a model while it is unloaded."""

    info: ModelInfo
    tokenizer: Tokenizer
    n_slots: int


class LlamaEngine:
    """Implements `app.engine.facade.Engine`."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        progress: Progress = lambda progress: None,
        said: Callable[[str], None] = log.info,
    ) -> None:
        self._config = config
        self._progress = progress
        self._said = said
        self._state = EngineState.LOADING
        self._error = ""
        self._model: LoadedModel | None = None
        self._known: KnownModel | None = None
        self._scheduler: Scheduler | None = None
        self._samplers: SamplerFactory | None = None
        self._counters = Counters()
        self._ids = count()
        self._inbox: deque[Task] = deque()
        self._actions = SlotActions()
        self._wake_asked = False
        self._awake: Future[None] = Future()
        self._wake = threading.Condition()
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._sleeping_workers: tuple[WorkerStats, ...] = ()
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
        """Facts about the model; once it was loaded."""
        return self._facts().info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; once it was loaded."""
        return self._facts().tokenizer

    @property
    def n_slots(self) -> int:
        """Number of slots."""
        return self._facts().n_slots

    async def submit(self, request: GenerationRequest) -> LlamaGeneration:
        """Queue a request; what takes long, such as reading a grammar, is done in a thread.

        Raises: RequestError, ContextExceededError, InputTooLargeError, UnsupportedError,
        EngineUnavailableError.
        """
        model = await self._woken()
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

    async def wake(self) -> None:
        """Wait until a sleeping engine is awake, or failed to be."""
        while self._state is EngineState.SLEEPING:
            awake = self._awake
            self._wake_asked = True
            self._notify()
            await asyncio.shield(asyncio.wrap_future(awake))

    async def slot_action(self, action: SlotAction) -> SlotReport:
        """Save, restore or erase a slot as soon as it is idle.

        Raises: RequestError, SlotFileError, DeviceLostError, EngineUnavailableError.
        """
        model = await self._woken()
        if not 0 <= action.id_slot < model.sizes.n_parallel:
            raise RequestError("Invalid slot ID", "id_slot")
        report = self._actions.ask(action)
        self._notify()
        return await asyncio.wrap_future(report)

    def slots(self) -> tuple[SlotInfo, ...]:
        """Snapshot of all slots."""
        scheduler = self._scheduler
        return tuple(slot_info(slot) for slot in scheduler.slots) if scheduler else ()

    def stats(self) -> EngineStats:
        """Snapshot of the counters."""
        scheduler, model = self._scheduler, self._model
        processing = sum(s.task is not None for s in scheduler.slots) if scheduler else 0
        deferred = len(self._inbox) + (len(scheduler.waiting) if scheduler else 0)
        workers = model.pool.worker_stats() if model else self._sleeping_workers
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

    async def _woken(self) -> LoadedModel:
        await self.wake()
        model = self._model
        if self._state is not EngineState.READY or model is None:
            raise EngineUnavailableError(self._error or f"the model is {self._state.value}")
        return model

    def _facts(self) -> "KnownModel":
        if self._known is None:
            raise EngineUnavailableError(self._error or f"the model is {self._state.value}")
        return self._known

    def _main(self) -> None:
        attempt = 0
        while not self._stopping.is_set():
            is_serving = False
            try:
                self._load()
                attempt, is_serving = 0, True
                self._serve()
                if not self._stopping.is_set():
                    self._sleep()
            except LlamaServeError as error:
                # What a failed step leaves in the caches is not known; loading again mends it.
                may_pass = is_serving or (
                    isinstance(error, DeviceLostError) and self._scheduler is not None
                )
                log.error("%s: %s", "serving failed" if is_serving else "loading failed", error)
                self._fail(error)
                if not may_pass:
                    return
                delay = RELOAD_DELAYS_S[min(attempt, len(RELOAD_DELAYS_S) - 1)]
                attempt += 1
                self._stopping.wait(delay)
            except Exception as error:
                log.exception("the engine ended unexpectedly")
                self._fail(error)
                return
        self._close()
        self._state = EngineState.STOPPED
        self._actions.fail(EngineUnavailableError("the server stops"))
        self._settle()

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
            memory=_memory(self._config, model),
        )
        if self._config.warmup:
            self._warm_up(model)
        if self._config.profile:
            start_profiles(model.pool.opened)
        self._known = KnownModel(model.info, model.tokenizer, model.sizes.n_parallel)
        self._error, self._state = "", EngineState.READY
        self._settle()

    def _warm_up(self, model: LoadedModel) -> None:
        """Run one token through every stage, so that a first request finds all in place."""
        token = model.tokenizer.vocab.special.bos or 0
        ending = Ending.LOGITS if model.hparams.causal else model.pooling.ending
        model.runner.run(StepPlan((SequenceChunk(0, [token], 0, True),), ending))
        model.cache.truncate(0, 0)

    def _serve(self) -> None:
        """Run steps until told to stop, or to sleep."""
        scheduler, model = self._scheduler, self._model
        assert scheduler is not None and model is not None
        while not self._stopping.is_set():
            while self._inbox:
                scheduler.waiting.append(self._inbox.popleft())
            self._actions.run(scheduler, model)
            plan = scheduler.plan()
            if not plan.chunks:
                if self._rest(scheduler, model.pool):
                    return
                continue
            start = now()
            result = model.runner.run(plan, scheduler.any_cancelled)
            scheduler.apply(plan, result, now() - start)

    def _rest(self, scheduler: Scheduler, pool: Pool) -> bool:
        """Wait for something to do; return whether nothing came for so long that it is time to
        sleep.

        Raises: DeviceLostError when a worker is lost meanwhile.
        """
        idle_s = self._config.sleep_idle_s
        sleep_at = now() + (threading.TIMEOUT_MAX if idle_s is None else idle_s)
        look_s = LOOK_S if pool.workers else threading.TIMEOUT_MAX
        with self._wake:
            if self._has_work() or not scheduler.is_idle:
                return False
            while (left_s := sleep_at - now()) > 0:
                if self._wake.wait(min(left_s, look_s)) or self._has_work():
                    return False
                pool.check()
            return True

    def _has_work(self) -> bool:
        return bool(self._inbox) or self._actions.waiting or self._stopping.is_set()

    def _sleep(self) -> None:
        """Give the devices back and wait until somebody needs the model."""
        log.info("nothing to do for %g s: the model is unloaded", self._config.sleep_idle_s)
        self._awake, self._wake_asked = Future(), False
        # Who looks at a sleeping engine sees what there was to see before.
        if self._model is not None:
            self._sleeping_workers = self._model.pool.worker_stats()
        self._state = EngineState.SLEEPING
        if self._scheduler is not None:
            self._scheduler.empty()
        self._close()
        with self._wake:
            self._wake.wait_for(lambda: self._wake_asked or self._has_work())
        self._sleeping_workers = ()
        log.info("the model is loaded again")

    def _settle(self) -> None:
        """Tell whoever waits for the end of loading."""
        self._settled.set()
        if not self._awake.done():
            self._awake.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._error, self._state = str(error), EngineState.FAILED
        if self._scheduler is not None:
            self._scheduler.waiting.extend(self._inbox)
            self._inbox.clear()
            self._scheduler.fail_all(error)
        self._actions.fail(error)
        self._close()
        self._settle()

    def _close(self) -> None:
        if self._model is not None:
            if self._config.profile:
                for device in self._model.pool.opened:
                    self._said(profile_text(device))
            self._model.close()
            self._model = None


def _memory(config: EngineConfig, model: LoadedModel) -> PromptMemory | None:
    """The memory of prompts, if there is to be one."""
    if not config.cache_ram_mib or config.embeds:
        return None
    takes_idle = config.cache_idle_slots and model.sizes.unified
    if takes_idle:
        log.debug("__TEST_TAG_CACHE_IDLE_SLOTS_ENABLED__ idle slots go to the prompt cache")
    limit = None if config.cache_ram_mib < 0 else config.cache_ram_mib << 20
    return PromptMemory(model.kv_rows, limit, takes_idle=takes_idle)
