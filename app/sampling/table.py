"""The table of samplers: name → what makes its stage; and the chain that a request asks for.

Samplers that are off by their value are left out. Order, defaults and what makes a sampler "off"
follow common_sampler_init in llama.cpp's common/sampling.cpp. A new sampler is a function in
filters.py, a field in params.py, a name in list_kinds.py and a row here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from app.sampling import filters
from app.sampling.adaptive import AdaptiveP
from app.sampling.choice import Dist, Greedy, Selector
from app.sampling.dry import Dry, DryParams
from app.sampling.mirostat import MirostatV1, MirostatV2
from app.sampling.params import SamplingParams, as_float32
from app.sampling.penalties import Penalties
from app.sampling.rng import Mt19937
from app.sampling.stage import Filter, Stage, Xtc
from app.sampling.vocab import Breakers


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What the factories of the table need besides the parameters."""

    seed: int
    n_vocab: int
    breakers: Callable[[Sequence[str]], Breakers]


Factory = Callable[[SamplingParams, BuildContext], Stage | None]
"""Makes a stage; None when the parameters switch it off."""


def _penalties(p: SamplingParams, context: BuildContext) -> Stage | None:
    off = (p.repeat_penalty, p.frequency_penalty, p.presence_penalty) == (1.0, 0.0, 0.0)
    if off or p.repeat_last_n <= 0:
        return None
    return Penalties(p.repeat_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty)


def _dry(p: SamplingParams, context: BuildContext) -> Stage | None:
    if p.dry_multiplier == 0 or p.dry_base < 1 or p.dry_penalty_last_n <= 0:
        return None
    numbers = DryParams(p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n)
    return Dry(numbers, context.breakers(p.dry_sequence_breakers))


def _top_n_sigma(p: SamplingParams, context: BuildContext) -> Stage | None:
    return Filter(partial(filters.top_n_sigma, n=p.top_n_sigma)) if p.top_n_sigma > 0 else None


def _top_k(p: SamplingParams, context: BuildContext) -> Stage | None:
    return Filter(partial(filters.top_k, k=p.top_k)) if p.top_k > 0 else None


def _typical_p(p: SamplingParams, context: BuildContext) -> Stage | None:
    if p.typical_p >= 1:
        return None
    return Filter(partial(filters.typical_p, p=p.typical_p, min_keep=p.min_keep))


def _top_p(p: SamplingParams, context: BuildContext) -> Stage | None:
    if p.top_p >= 1:
        return None
    return Filter(partial(filters.top_p, p=p.top_p, min_keep=p.min_keep))


def _min_p(p: SamplingParams, context: BuildContext) -> Stage | None:
    if p.min_p <= 0:
        return None
    return Filter(partial(filters.min_p, p=p.min_p, min_keep=p.min_keep))


def _xtc(p: SamplingParams, context: BuildContext) -> Stage | None:
    if p.xtc_probability <= 0 or p.xtc_threshold > 0.5:
        return None
    return Xtc(p.xtc_probability, p.xtc_threshold, p.min_keep, Mt19937(context.seed))


def _temperature(p: SamplingParams, context: BuildContext) -> Stage | None:
    if p.dynatemp_range > 0:
        dynamic = filters.dynamic_temperature
        return Filter(
            partial(
                dynamic,
                temp=p.temperature,
                spread=p.dynatemp_range,
                exponent=p.dynatemp_exponent,
            )
        )
    return None if p.temperature == 1 else Filter(partial(filters.temperature, temp=p.temperature))


STAGES: Final[Mapping[str, Factory]] = {
    "penalties": _penalties,
    "dry": _dry,
    "top_n_sigma": _top_n_sigma,
    "top_k": _top_k,
    "typ_p": _typical_p,
    "top_p": _top_p,
    "min_p": _min_p,
    "xtc": _xtc,
    "temperature": _temperature,
}
"""Name in `samplers` → its stage. "adaptive_p" is not here: it is a selector."""

_KEEP_THE_BEST: Final = {"top_n_sigma", "top_k", "top_p", "min_p", "temperature"}
"""Stages that never take the most probable token away."""


@dataclass(frozen=True, slots=True)
class _Link:
    name: str
    stage: Stage


def _links(p: SamplingParams, context: BuildContext) -> list[_Link]:
    if p.mirostat:
        p = replace(p, samplers=("temperature",), dynatemp_range=0.0)
    made = [(name, STAGES[name](p, context)) for name in p.samplers if name in STAGES]
    return [_Link(name, stage) for name, stage in made if stage is not None]


def _selector(p: SamplingParams, context: BuildContext) -> Selector:
    rng = Mt19937(context.seed)
    if p.mirostat == 1:
        return MirostatV1(p.mirostat_tau, p.mirostat_eta, rng, context.n_vocab)
    if p.mirostat == 2:
        return MirostatV2(p.mirostat_tau, p.mirostat_eta, rng)
    if "adaptive_p" in p.samplers:
        return AdaptiveP(p.adaptive_target, p.adaptive_decay, rng)
    return Dist(rng)


def build_chain(p: SamplingParams, context: BuildContext) -> tuple[list[Stage], Selector]:
    """Return the stages in order, without logit bias, and the selector.

    Where temperature zero leaves only the best token and no stage before could take it away, the
    filters are replaced by an arg-max, which chooses the same.
    """
    p = as_float32(p)
    links, selector = _links(p, context), _selector(p, context)
    cut = next((i for i, link in enumerate(links) if link.name in _KEEP_THE_BEST), len(links))
    rest = {link.name for link in links[cut:]}
    greedy = p.temperature <= 0 and p.dynatemp_range <= 0 and "temperature" in rest
    if greedy and rest <= _KEEP_THE_BEST and isinstance(selector, Dist):
        links, selector = links[:cut], Greedy()
    return [link.stage for link in links], selector
