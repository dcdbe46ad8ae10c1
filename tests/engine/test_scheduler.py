"""The scheduler against a made-up model: the next token is always the last one plus one."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from app.engine.counters import Counters
from app.engine.kv_cache import KVCache
from app.engine.pooling import PoolingMode
from app.engine.request import (
    Embedded,
    Event,
    Failed,
    Finished,
    Piece,
    Started,
    StopReason,
)
from app.engine.scheduler import Scheduler
from app.engine.slots import Slot
from app.engine.step import Pick, StepPlan, StepResult
from app.engine.task import Task
from app.errors import DeviceLostError
from app.models.hparams import Pooling
from app.models.inputs import Ending
from tests.helpers.fake_task import make_task
from tests.helpers.fake_tokenizer import LetterTokenizer

N_VOCAB = 27
MEAN = PoolingMode(Pooling.MEAN, causal=True)
PICKED = {Pick.ALL: slice(None), Pick.FIRST: slice(1), Pick.LAST: slice(-1, None)}

Rows = npt.NDArray[np.float32]


@dataclass
class Rig:
    """A scheduler with a model that counts through the alphabet."""

    n_slots: int = 2
    n_ctx: int = 64
    n_cells: int = 128
    n_batch: int = 16
    pooling: PoolingMode = MEAN
    context_shift: bool = False
    plans: list[StepPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = KVCache(self.n_cells, 0, 0)
        self.scheduler = Scheduler(
            [Slot(i, self.n_ctx) for i in range(self.n_slots)],
            self.cache,
            LetterTokenizer(),
            Counters(),
            n_batch=self.n_batch,
            n_ubatch=self.n_batch,
            similarity=0.1,
            pooling=self.pooling,
            context_shift=self.context_shift,
        )

    def step(self) -> None:
        plan = self.scheduler.plan()
        self.plans.append(plan)
        logits, processed = {}, {}
        for chunk in plan.chunks:
            self.cache.take(chunk.seq, range(chunk.n_past, chunk.n_past + len(chunk.tokens)))
            processed[chunk.seq] = len(chunk.tokens)
            if chunk.wants_logits:
                row = np.zeros(N_VOCAB, np.float32)
                row[(chunk.tokens[-1] + 1) % N_VOCAB] = 1.0
                logits[chunk.seq] = row
        result = StepResult(logits, processed)
        if plan.ending is not Ending.LOGITS:
            result = StepResult({}, processed, hidden_of(plan))
        self.scheduler.apply(plan, result, 0.0)
        self.scheduler.check_integrity()

    def run(self, *tasks: Task, limit: int = 500) -> None:
        self.scheduler.waiting.extend(tasks)
        for _ in range(limit):
            if self.scheduler.is_idle:
                return
            self.step()
        pytest.fail("the scheduler never came to rest")


def hidden_of(plan: StepPlan) -> dict[int, Rows]:
    """The model's hidden state of a token is the token's own number."""
    return {
        chunk.seq: np.array(chunk.tokens, np.float32)[:, None][PICKED[chunk.pick]]
        for chunk in plan.chunks
        if chunk.wants_logits
    }


def text_of(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, Piece))


def end_of(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished), events
    return events[-1]


def test_a_request_runs_to_its_limit() -> None:
    events: list[Event] = []
    Rig().run(make_task([0, 1], n_predict=3, events=events))
    assert isinstance(events[0], Started)
    assert text_of(events) == "cde"
    assert end_of(events).reason is StopReason.LIMIT
    assert not end_of(events).truncated


def test_eos_ends_and_does_not_show() -> None:
    events: list[Event] = []
    Rig().run(make_task([22], events=events))
    assert text_of(events) == "xyz"
    assert end_of(events).reason is StopReason.EOS
    assert end_of(events).n_decoded == 4


def test_a_stop_string_ends_and_is_named() -> None:
    events: list[Event] = []
    Rig().run(make_task([0], stop=("de",), events=events))
    assert text_of(events) == "bc"
    assert end_of(events).reason is StopReason.WORD
    assert end_of(events).stopping_word == "de"


def test_a_full_context_ends_as_truncated() -> None:
    events: list[Event] = []
    rig = Rig(n_ctx=6)
    rig.run(make_task([0, 1, 2], events=events))
    assert end_of(events).truncated
    assert end_of(events).reason is StopReason.LIMIT
    assert len(rig.scheduler.slots[0].tokens) < 6


def test_n_predict_zero_only_fills_the_cache() -> None:
    events: list[Event] = []
    rig = Rig()
    rig.run(make_task([0, 1, 2], n_predict=0, events=events))
    assert end_of(events).n_decoded == 0
    assert rig.scheduler.slots[0].tokens == [0, 1, 2]


def test_a_common_prefix_is_not_computed_again() -> None:
    rig = Rig()
    rig.run(make_task(range(10), n_predict=1))
    rig.plans.clear()
    events: list[Event] = []
    rig.run(make_task([*range(8), 20, 21], n_predict=1, events=events))
    assert end_of(events).n_cached_tokens == 8
    assert rig.plans[0].n_tokens == 2


def test_the_last_prompt_token_is_always_computed() -> None:
    rig = Rig()
    rig.run(make_task(range(10), n_predict=1))
    events: list[Event] = []
    rig.run(make_task(range(10), n_predict=1, events=events))
    assert end_of(events).n_cached_tokens == 9


def test_without_cache_prompt_everything_is_computed() -> None:
    rig = Rig()
    rig.run(make_task(range(10), n_predict=1))
    events: list[Event] = []
    rig.run(make_task(range(10), n_predict=1, cache_prompt=False, events=events))
    assert end_of(events).n_cached_tokens == 0


def test_long_prompts_are_cut_to_the_batch() -> None:
    rig = Rig(n_batch=4)
    rig.run(make_task(range(10), n_predict=1))
    assert [plan.n_tokens for plan in rig.plans] == [4, 4, 2]


def test_more_requests_than_slots_all_get_served() -> None:
    lists: list[list[Event]] = [[] for _ in range(7)]
    Rig().run(*(make_task([i], n_predict=4, events=events) for i, events in enumerate(lists)))
    for i, events in enumerate(lists):
        assert text_of(events) == "".join(chr(ord("a") + i + k) for k in range(1, 5))


def test_decoding_goes_on_beside_a_long_prompt() -> None:
    rig = Rig(n_batch=4)
    rig.scheduler.waiting.append(make_task([0], n_predict=20))
    rig.step()
    rig.scheduler.waiting.append(make_task(range(12), n_predict=1))
    rig.step()
    assert {chunk.seq: len(chunk.tokens) for chunk in rig.plans[-1].chunks} == {0: 1, 1: 4}


def test_a_cancelled_request_frees_its_slot_at_once() -> None:
    rig = Rig(n_batch=4)
    running, waiting = make_task(range(12), id_slot=0), make_task([3], id_slot=0)
    rig.scheduler.waiting.extend([running, waiting])
    rig.step()
    waiting.cancelled = True
    rig.step()
    assert not rig.scheduler.waiting
    running.cancelled = True
    assert rig.scheduler.any_cancelled()
    rig.scheduler.plan()
    assert rig.scheduler.is_idle


def test_a_full_pool_costs_time_and_no_request() -> None:
    lists: list[list[Event]] = [[] for _ in range(4)]
    rig = Rig(n_slots=4, n_ctx=24, n_cells=24)
    rig.run(*(make_task([0, 1], n_predict=14, events=events) for events in lists))
    for events in lists:
        assert text_of(events) == "cdefghijklmnop"
        assert sum(isinstance(e, Started) for e in events) == 1


def test_idle_slots_give_up_their_tokens_first() -> None:
    rig = Rig(n_slots=2, n_ctx=24, n_cells=24)
    rig.run(make_task(range(16), n_predict=1))
    events: list[Event] = []
    rig.run(make_task([20] * 12, n_predict=3, id_slot=1, events=events))
    assert end_of(events).n_decoded == 3
    assert rig.scheduler.slots[0].tokens == []


def test_a_lost_device_ends_every_request_with_its_error() -> None:
    rig = Rig(n_slots=1)
    first: list[Event] = []
    second: list[Event] = []
    rig.scheduler.waiting.extend([make_task([0], events=first), make_task([1], events=second)])
    rig.step()
    error = DeviceLostError("RPC0 went away")
    rig.scheduler.fail_all(error)
    assert first[-1] == Failed(error)
    assert second[-1] == Failed(error)
    assert rig.scheduler.is_idle
    rig.scheduler.check_integrity()


def embedded(events: list[Event]) -> list[float]:
    assert isinstance(events[-1], Finished)
    (rows,) = (e.rows for e in events if isinstance(e, Embedded))
    return [float(row[0]) for row in rows]


@pytest.mark.parametrize(
    ("pooling", "causal", "expected"),
    [
        (Pooling.NONE, True, [3.0, 1.0, 5.0]),
        (Pooling.MEAN, False, [3.0]),
        (Pooling.CLS, True, [3.0]),
        (Pooling.LAST, False, [5.0]),
        (Pooling.RANK, False, [3.0]),
        (Pooling.RANK, True, [5.0]),
    ],
)
def test_a_text_is_pooled_as_told(pooling: Pooling, causal: bool, expected: list[float]) -> None:
    events: list[Event] = []
    rig = Rig(pooling=PoolingMode(pooling, causal))
    rig.run(make_task([3, 1, 5], embeds=True, events=events))
    assert embedded(events) == expected


def test_texts_share_a_micro_batch_as_far_as_they_fit_whole() -> None:
    heard: list[list[Event]] = [[], [], []]
    rig = Rig(n_slots=3)
    rig.run(*(make_task([i] * 7, embeds=True, events=heard[i]) for i in range(3)))
    assert [len(plan.chunks) for plan in rig.plans] == [2, 1]
    assert [embedded(events) for events in heard] == [[0.0], [1.0], [2.0]]


def test_a_text_whose_last_token_stands_for_it_may_be_cut() -> None:
    events: list[Event] = []
    rig = Rig(pooling=PoolingMode(Pooling.LAST, causal=True))
    rig.run(make_task(list(range(20)), embeds=True, events=events))
    assert [plan.n_tokens for plan in rig.plans] == [16, 4]
    assert embedded(events) == [19.0]


def test_nothing_of_an_embedded_text_is_kept() -> None:
    rig = Rig()
    rig.run(make_task([1, 2, 3], embeds=True))
    assert rig.cache.full.n_free() == rig.n_cells
    assert not any(slot.tokens for slot in rig.scheduler.slots)


def test_texts_and_generations_take_turns() -> None:
    story: list[Event] = []
    rig = Rig(n_slots=2)
    texts = [make_task([i] * 9, embeds=True) for i in range(6)]
    rig.run(make_task([0, 1], n_predict=12, events=story), *texts)
    assert text_of(story) == "cdefghijklmn"
    kinds = [plan.ending is Ending.LOGITS for plan in rig.plans if plan.chunks]
    assert kinds[:12] == [False, True] * 6
    assert all(kinds[12:])


def test_with_context_shift_a_text_goes_on_past_its_context() -> None:
    events: list[Event] = []
    rig = Rig(n_ctx=12, n_batch=4, context_shift=True)
    rig.run(make_task([0, 1, 2], n_predict=20, events=events))
    assert text_of(events) == "defghijklmnopqrstuvw"
    assert end_of(events).truncated
    assert end_of(events).reason is StopReason.LIMIT
    assert end_of(events).timings.prompt_n == 3
    assert all(len(slot.tokens) < 12 for slot in rig.scheduler.slots)


def test_a_shift_keeps_and_drops_what_the_request_says() -> None:
    rig = Rig(n_ctx=12, context_shift=True)
    task = make_task(range(4), n_predict=10, n_keep=2, n_discard=3)
    rig.run(task)
    (shifted,) = [plan.chunks[0] for plan in rig.plans[1:] if plan.n_tokens > 1]
    assert shifted.n_past == 2
    assert task.tokens == [0, 1, *range(5, 14)]


def test_a_shift_beside_other_streams_leaves_them_alone() -> None:
    lists: list[list[Event]] = [[], []]
    rig = Rig(n_ctx=12, n_cells=24, n_batch=4, context_shift=True)
    rig.run(*(make_task([i], n_predict=18, events=events) for i, events in enumerate(lists)))
    assert text_of(lists[0]) == "bcdefghijklmnopqrs"
    assert text_of(lists[1]) == "cdefghijklmnopqrst"
