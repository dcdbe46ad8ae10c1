"""The slots: each keeps the cache of one sequence, runs at most one task, and remembers its tokens
for the next.

`tokens` are those whose keys and values are in the cache, by position; they outlive the task, so
that a prompt which begins the same way need not be computed again. A slot's id is its sequence id
in the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.engine.facade import SlotInfo
from app.engine.task import Task


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence's place."""

    id: int
    n_ctx: int
    tokens: list[int] = field(default_factory=list)
    task: Task | None = None
    last_task: Task | None = None
    last_used: int = 0


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading tokens that `a` and `b` share."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def choose_slot(slots: Sequence[Slot], task: Task, similarity: float) -> Slot | None:
    """The slot for a task, or None when it has to wait.

    A free slot that already holds at least `similarity` of the prompt comes first, else the one
    that was used longest ago; a task that names its slot gets that one.
    """
    wanted = task.request.id_slot
    free = [s for s in slots if s.task is None and wanted in (-1, s.id)]
    if not free:
        return None
    if task.request.cache_prompt and similarity > 0 and task.n_prompt:
        best = max(free, key=lambda s: common_prefix(s.tokens, task.request.prompt))
        if common_prefix(best.tokens, task.request.prompt) / task.n_prompt > similarity:
            return best
    return min(free, key=lambda s: (s.last_used, s.id))


def slot_info(slot: Slot) -> SlotInfo:
    """Return what is told about a slot; may be called from any thread."""
    task, last = slot.task, slot.task or slot.last_task
    is_busy = task is not None
    return SlotInfo(
        id=slot.id,
        n_ctx=slot.n_ctx,
        is_processing=is_busy,
        id_task=last.id if last else -1,
        n_prompt_tokens=last.n_prompt if last else 0,
        n_prompt_tokens_processed=last.n_prompt - last.n_cached if last else 0,
        n_prompt_tokens_cache=last.n_cached if last else 0,
        request=last.request if last else None,
        n_decoded=last.n_decoded if last and is_busy else 0,
        n_remain=last.n_remaining() if last and is_busy else -1,
        has_next_token=is_busy,
        has_new_line=last.limits.has_new_line if last else False,
    )
