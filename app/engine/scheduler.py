"""Decides what each step computes and what its results mean; touches no device but through the
memory of prompts.

One step: waiting tasks get free slots; every decoding sequence gives its one token; prompts fill
what is left of the batch, oldest first. Afterwards each sequence whose logits came back gets its
next token, and ends or goes on. When the pool of cells is full, idle slots give up their remembered
tokens first; then the youngest task goes back to the queue and is computed again later, so a full
pool costs time and no request. With context shift a full context is treated alike: see
`context_shift`.
"""

import logging
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from app.engine.context_shift import gap
from app.engine.counters import Counters
from app.engine.generate import advance, fail, finish
from app.engine.kv_cache import KVCache
from app.engine.pooling import PoolingMode, plan_embeddings
from app.engine.prompt_memory import PromptMemory
from app.engine.request import Embedded, PromptProgress, Started, StopReason
from app.engine.slots import Slot, choose_slot, common_prefix
from app.engine.step import SequenceChunk, StepPlan, StepResult
from app.engine.task import Task, TaskState, now
from app.errors import LlamaServeError
from app.tokenizer.base import Tokenizer

log = logging.getLogger(__name__)

MOSTLY = 0.5
"""A slot that keeps this part of its tokens is not worth remembering as it was."""


class Scheduler:
    """Owns the queue, the slots and the cache tables; lives in the engine thread."""

    def __init__(
        self,
        slots: Sequence[Slot],
        cache: KVCache,
        tokenizer: Tokenizer,
        counters: Counters,
        *,
        n_batch: int,
        n_ubatch: int,
        similarity: float,
        pooling: PoolingMode,
        context_shift: bool = False,
        memory: PromptMemory | None = None,
    ) -> None:
        self.slots = slots
        self.waiting: deque[Task] = deque()
        self._cache = cache
        self._tokenizer = tokenizer
        self._counters = counters
        self._n_batch = n_batch
        self._n_ubatch = n_ubatch
        self._similarity = similarity
        self._pooling = pooling
        self._context_shift = context_shift
        self.memory = memory
        self._embeds_next = False
        self._clock = 0

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and all(slot.task is None for slot in self.slots)

    def plan(self) -> StepPlan:
        """Choose the tokens of the next step."""
        self._drop_cancelled()
        self._shift_full_contexts()
        self._make_room()
        self._admit()
        busy = [(slot, slot.task) for slot in self.slots if slot.task is not None]
        texts = [(slot, task) for slot, task in busy if task.request.embeds]
        # A step has one kind of result; the kinds take turns, so that neither waits for long.
        self._embeds_next = bool(texts) and (len(texts) == len(busy) or not self._embeds_next)
        if self._embeds_next:
            return plan_embeddings(texts, self._pooling, self._n_ubatch)
        return self._plan_generation([pair for pair in busy if pair not in texts])

    def _plan_generation(self, busy: Sequence[tuple[Slot, Task]]) -> StepPlan:
        chunks = [
            SequenceChunk(slot.id, task.tokens[-1:], len(slot.tokens), True)
            for slot, task in busy
            if task.state is TaskState.DECODE
        ]
        # A long prompt must not hold up running streams: beside them it goes on in small steps.
        room = self._n_ubatch if chunks else self._n_batch
        prefill = [(slot, task) for slot, task in busy if task.state is TaskState.PREFILL]
        for slot, task in sorted(prefill, key=lambda pair: pair[1].id):
            if room <= 0:
                break
            done = len(slot.tokens)
            tokens = task.tokens[done : done + room]
            wants = done + len(tokens) == len(task.tokens)
            chunks.append(SequenceChunk(slot.id, tokens, done, wants))
            room -= len(tokens)
        return StepPlan(tuple(chunks))

    def apply(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        """Take in what a step computed."""
        self._counters.add_step(plan, sum(s.task is not None for s in self.slots), seconds)
        for chunk in plan.chunks:
            slot = self.slots[chunk.seq]
            task = slot.task
            n_done = result.processed.get(chunk.seq, 0)
            slot.tokens.extend(chunk.tokens[:n_done])
            self._counters.n_tokens_max = max(self._counters.n_tokens_max, len(slot.tokens))
            if task is None or task.cancelled:
                continue
            task.t_last = now()
            if task.state is TaskState.PREFILL and not task.t_prompt_done:
                self._report_progress(slot, task)
            rows = result.hidden.get(chunk.seq)
            if rows is not None:
                self._embedded(slot, task, rows)
                continue
            logits = result.logits.get(chunk.seq)
            if logits is not None:
                self._next_token(slot, task, logits)
        self._drop_cancelled()

    def fail_all(self, error: Exception) -> None:
        """Fail every task and forget every cache."""
        for slot in self.slots:
            if slot.task is not None:
                fail(slot.task, error)
                self._release(slot)
            self.forget(slot)
        while self.waiting:
            fail(self.waiting.popleft(), error)

    def empty(self) -> None:
        """Forget every cache and the memory of prompts; nothing may be running."""
        self.memory = None
        for slot in self.slots:
            self.forget(slot)

    def clear_idle(self, n_cells: int) -> None:
        """Empty idle slots, longest unused first, until so many cells are free or none is left."""
        while self._cache.full.n_free() < n_cells and (slot := self._oldest_idle()) is not None:
            self.forget(slot)

    def any_cancelled(self) -> bool:
        """Whether a running task was cancelled since the plan was made."""
        return any(slot.task is not None and slot.task.cancelled for slot in self.slots)

    def check_integrity(self) -> None:
        """Assert that the cache holds what the slots say."""
        self._cache.check_integrity()
        for slot in self.slots:
            assert self._cache.full.n_used(slot.id) == len(slot.tokens), f"slot {slot.id}"

    def _next_token(self, slot: Slot, task: Task, logits: npt.NDArray[np.float32]) -> None:
        n_past = len(slot.tokens)
        if task.state is TaskState.PREFILL:
            task.state = TaskState.DECODE
            if not task.t_prompt_done:
                task.t_prompt_done = task.t_last
                self._counters.add_prompt(task)
            if task.request.n_predict == 0:
                finish(task, StopReason.LIMIT, n_past=n_past)
                self._release(slot)
                return
        try:
            n_ctx = None if self._context_shift else slot.n_ctx
            going_on = advance(task, logits, self._tokenizer, n_past, n_ctx)
        except LlamaServeError as error:
            fail(task, error)
            self._release(slot)
            return
        self._counters.predicted_tokens += 1
        if not going_on:
            self._counters.add_predicted(task)
            self._release(slot)

    def _embedded(self, slot: Slot, task: Task, rows: npt.NDArray[np.float32]) -> None:
        """Hand over a text's embedding; nothing of the text is kept: no prompt goes on from it."""
        task.t_prompt_done = task.t_last
        self._counters.add_prompt(task)
        task.emit(Embedded(self._pooling.pool(rows)))
        finish(task, StopReason.LIMIT, n_past=len(slot.tokens))
        self._release(slot)
        self.forget(slot)

    def _admit(self) -> None:
        for task in list(self.waiting):
            slot = choose_slot(self.slots, task, self._similarity)
            if slot is None:
                continue
            if not self._fits(slot, task):
                break
            self.waiting.remove(task)
            self._start(slot, task)

    def _fits(self, slot: Slot, task: Task) -> bool:
        """Whether the pool can hold the task beside those that run; idle slots give way."""
        promised = sum(
            max(len(s.tokens), len(s.task.tokens)) for s in self.slots if s.task is not None
        )
        return promised + len(task.tokens) <= self._cache.full.n_cells

    def _start(self, slot: Slot, task: Task) -> None:
        if self.memory is not None and task.request.cache_prompt:
            self._remember(self.memory, slot, task)
        shared = common_prefix(slot.tokens, task.tokens) if task.request.cache_prompt else 0
        # The last token is always computed again: its logits are what the next choice needs.
        shared = self._cache.reusable(slot.id, min(shared, len(task.tokens) - 1))
        self._cache.truncate(slot.id, shared)
        del slot.tokens[shared:]
        self._clock += 1
        slot.task, slot.last_task, slot.last_used = task, task, self._clock
        is_new = task.state is TaskState.NEW
        task.state = TaskState.PREFILL
        if is_new:
            task.n_cached, task.t_start = shared, now()
            task.sampler.accept_prompt(task.request.prompt)
            task.emit(Started(slot.id, task.n_prompt, shared))
            self._report_progress(slot, task)
        self._make_room()

    def _remember(self, memory: PromptMemory, slot: Slot, task: Task) -> None:
        """Keep what idle slots would lose, and fetch what was kept and fits the task better."""
        if memory.takes_idle:
            for idle in self.slots:
                if idle is not slot and idle.task is None and idle.tokens:
                    log.debug("slot %d: __TEST_TAG_CACHE_IDLE_SLOT__ kept and emptied", idle.id)
                    memory.keep(idle.id, idle.tokens)
                    self.forget(idle)
        shared = common_prefix(slot.tokens, task.tokens)
        if slot.tokens and shared >= MOSTLY * len(slot.tokens):
            return
        log.info("slot %d: updating prompt cache", slot.id)
        memory.keep(slot.id, slot.tokens)
        found = memory.best(task.tokens, better_than=shared)
        if found is not None:
            self.forget(slot)
            self.clear_idle(len(found.tokens))
            if memory.fetch(found, slot.id):
                slot.tokens.extend(found.tokens)

    def _shift_full_contexts(self) -> None:
        """Have sequences that go on in a full context forget part of it."""
        if not self._context_shift:
            return
        for slot in self.slots:
            task = slot.task
            if task is None or task.state is not TaskState.DECODE:
                continue
            if len(slot.tokens) + 1 < slot.n_ctx:
                continue
            n_keep = task.n_prompt if task.request.n_keep < 0 else task.request.n_keep
            start, end = gap(
                len(slot.tokens),
                slot.n_ctx,
                n_keep=n_keep + self._tokenizer.vocab.add_bos,
                n_discard=task.request.n_discard,
            )
            log.warning(
                "slot %d: context shift, %d tokens kept, %d dropped", slot.id, start, end - start
            )
            del task.tokens[start:end]
            task.truncated, task.state = True, TaskState.PREFILL
            kept = self._cache.reusable(slot.id, start)
            self._cache.truncate(slot.id, kept)
            del slot.tokens[kept:]

    def _report_progress(self, slot: Slot, task: Task) -> None:
        if task.request.return_progress:
            elapsed = int(1e3 * (now() - task.t_start))
            task.emit(PromptProgress(task.n_prompt, task.n_cached, len(slot.tokens), elapsed))

    def _make_room(self) -> None:
        """See to it that the pool can hold what the running tasks have and their next tokens."""
        while self._shortage() > 0:
            idle = self._oldest_idle()
            if idle is not None:
                self.forget(idle)
            else:
                busy = [slot for slot in self.slots if slot.task is not None]
                self._put_back(max(busy, key=lambda slot: slot.last_used))

    def _oldest_idle(self) -> Slot | None:
        idle = [slot for slot in self.slots if slot.task is None and slot.tokens]
        return min(idle, key=lambda slot: slot.last_used, default=None)

    def _shortage(self) -> int:
        """Cells that the running tasks want and the pool has not got."""
        wanted = sum(len(s.task.tokens) - len(s.tokens) for s in self.slots if s.task is not None)
        return wanted - self._cache.full.n_free()

    def _put_back(self, slot: Slot) -> None:
        """Let a running task wait at the head of the queue."""
        assert slot.task is not None
        slot.task.state = TaskState.WAITING
        self.waiting.appendleft(slot.task)
        slot.task = None
        self.forget(slot)

    def _drop_cancelled(self) -> None:
        for task in [t for t in self.waiting if t.cancelled]:
            self.waiting.remove(task)
        for slot in self.slots:
            if slot.task is not None and slot.task.cancelled:
                self._release(slot)

    def _release(self, slot: Slot) -> None:
        assert slot.task is not None
        slot.task.state = TaskState.DONE
        slot.task = None

    def forget(self, slot: Slot) -> None:
        """Empty an idle slot."""
        self._cache.truncate(slot.id, 0)
        slot.tokens.clear()
