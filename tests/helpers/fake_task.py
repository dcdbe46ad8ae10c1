"""Tasks for engine tests: a sampler that takes the largest logit, events kept in a list."""

from collections.abc import Sequence
from itertools import count

from app.engine.output import LineLimits, TextAssembler
from app.engine.request import Event, GenerationRequest
from app.engine.task import Task
from app.engine.token_sampler import TokenSampler
from app.sampling.chain import Sampler
from app.sampling.choice import Greedy
from app.sampling.params import SamplingParams

_ids = count()


def make_task(
    prompt: Sequence[int],
    *,
    n_predict: int = -1,
    n_keep: int = 0,
    n_discard: int = 0,
    id_slot: int = -1,
    stop: tuple[str, ...] = (),
    cache_prompt: bool = True,
    embeds: bool = False,
    events: list[Event] | None = None,
) -> Task:
    """A task that appends its events to `events`."""
    request = GenerationRequest(
        prompt=tuple(prompt),
        sampling=SamplingParams(),
        n_predict=n_predict,
        n_keep=n_keep,
        n_discard=n_discard,
        id_slot=id_slot,
        stop=stop,
        cache_prompt=cache_prompt and not embeds,
        embeds=embeds,
    )
    kept: list[Event] = [] if events is None else events
    return Task(
        id=next(_ids),
        request=request,
        sampler=TokenSampler(Sampler((), Greedy(), 0), SamplingParams()),
        emit=kept.append,
        assembler=TextAssembler(stop),
        limits=LineLimits(0, -1),
        tokens=list(prompt),
    )
