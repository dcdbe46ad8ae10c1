"""Whatever the logits and the parameters: something is left, nothing is NaN, a token comes out."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.errors import RequestError
from app.sampling import filters
from app.sampling.candidates import F32, Candidates
from app.sampling.chain import SamplerFactory
from app.sampling.errors import SamplingError
from app.sampling.list_kinds import SAMPLER_LETTERS
from app.sampling.params import SamplingParams, params_from_request
from app.sampling.rng import Mt19937
from tests.sampling.fake_vocab import numbered

N = 24
finite = st.floats(-80, 80, width=32)
logits = arrays(np.float32, N, elements=finite)
wild = arrays(
    np.float32,
    N,
    elements=st.one_of(finite, st.just(-np.inf), st.floats(width=32, allow_nan=False)),
)
share = st.floats(0, 1)
keep = st.integers(0, N + 5)

requests = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**32 - 1),
        "temperature": st.floats(0, 5),
        "dynatemp_range": st.floats(-1, 5),
        "dynatemp_exponent": st.floats(-3, 3),
        "top_k": st.integers(-2, 30),
        "top_p": share,
        "min_p": share,
        "top_n_sigma": st.floats(-1, 5),
        "xtc_probability": share,
        "xtc_threshold": share,
        "typical_p": st.floats(-0.5, 1.5),
        "repeat_last_n": st.integers(0, 40),
        "repeat_penalty": st.floats(0.01, 10),
        "presence_penalty": st.floats(-1e38, 1e38),
        "frequency_penalty": st.floats(-5, 5),
        "dry_multiplier": st.floats(-1e38, 1e38),
        "dry_base": st.floats(0, 1e6),
        "dry_allowed_length": st.integers(0, 5),
        "dry_penalty_last_n": st.integers(0, 40),
        "mirostat": st.integers(0, 2),
        "mirostat_tau": st.floats(-1e6, 1e6),
        "mirostat_eta": st.floats(-1e6, 1e6),
        "adaptive_target": st.floats(-1, 1),
        "adaptive_decay": st.floats(0, 0.99),
        "min_keep": keep,
        "samplers": st.text("".join(SAMPLER_LETTERS.values()), max_size=12),
        "ignore_eos": st.booleans(),
        "logit_bias": st.lists(
            st.tuples(st.integers(0, N - 1), st.floats(-100, 100)).map(list), max_size=5
        ),
    },
)


def is_sound(before: F32, after: Candidates, min_keep: int) -> bool:
    ids = after.token_ids()
    falls = not after.is_sorted or (after.logits[:-1] >= after.logits[1:]).all()
    return bool(
        after.size >= min(max(min_keep, 1), before.size)
        and len(set(ids.tolist())) == after.size
        and not np.isnan(after.logits).any()
        and falls
    )


@given(logits, share, keep)
def test_top_p_keeps_enough(values: F32, p: float, n: int) -> None:
    for c in (Candidates(values), Candidates(values).sort()):
        assert is_sound(values, filters.top_p(c, p, n), n)


@given(logits, st.floats(1e-6, 1), keep)
def test_min_p_keeps_enough(values: F32, p: float, n: int) -> None:
    for c in (Candidates(values), Candidates(values).sort()):
        assert is_sound(values, filters.min_p(c, p, n), n)


@given(logits, st.floats(-0.5, 0.999), keep)
def test_typical_keeps_enough(values: F32, p: float, n: int) -> None:
    with np.errstate(all="ignore"):
        assert is_sound(values, filters.typical_p(Candidates(values), p, n), n)


@given(logits, share, keep, st.integers(0, 2**32 - 1))
def test_xtc_keeps_enough(values: F32, threshold: float, n: int, seed: int) -> None:
    assert is_sound(values, filters.xtc(Candidates(values), 1.0, threshold, n, Mt19937(seed)), n)


@given(logits, st.integers(1, 30))
def test_top_k_keeps_k(values: F32, k: int) -> None:
    after = filters.top_k(Candidates(values), k)
    assert is_sound(values, after, k)
    assert after.size == min(k, N)


@given(logits, st.floats(0.01, 10))
def test_top_n_sigma_keeps_the_best(values: F32, n: float) -> None:
    after = filters.top_n_sigma(Candidates(values), n)
    assert is_sound(values, after, N)
    assert after.logits.max() == values.max()


@given(logits, st.floats(0, 5), st.floats(0.01, 5), st.floats(-3, 3))
def test_dynamic_temperature_keeps_all(
    values: F32, temp: float, spread: float, exponent: float
) -> None:
    with np.errstate(all="ignore"):
        after = filters.dynamic_temperature(Candidates(values), temp, spread, exponent)
    assert is_sound(values, after, N)


TAME = {"presence_penalty": 1.5, "dry_multiplier": 0.8, "dry_base": 1.75}


@given(logits, requests, st.lists(st.integers(0, N - 1), max_size=30))
def test_finite_logits_and_sane_penalties_always_give_a_token(
    values: F32, request: dict[str, object], prompt: list[int]
) -> None:
    sane = {name: TAME.get(name, value) for name, value in request.items()}
    sampler = SamplerFactory(numbered(N)).build(params_from_request(sane, SamplingParams()))
    sampler.accept_prompt(prompt)
    for _ in range(3):
        token = sampler.sample(values).token
        assert 0 <= token < N
        sampler.accept(token)


@settings(max_examples=200)
@given(wild, requests, st.lists(st.integers(0, N - 1), max_size=30))
def test_a_token_comes_out_or_a_typed_error(
    values: F32, request: dict[str, object], prompt: list[int]
) -> None:
    factory = SamplerFactory(numbered(N))
    sampler = factory.build(params_from_request(request, SamplingParams()))
    sampler.accept_prompt(prompt)
    for _ in range(3):
        try:
            choice = sampler.sample(values)
        except SamplingError:
            return
        assert 0 <= choice.token < N
        assert all(0 < p <= 1 + 1e-5 for _, p in choice.top(N))
        sampler.accept(choice.token)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@settings(max_examples=200)
@given(st.sampled_from(list(SamplingParams.__dataclass_fields__)), json_like)
def test_any_json_is_read_or_refused_by_name(name: str, value: object) -> None:
    try:
        params = params_from_request({name: value}, SamplingParams())
        SamplerFactory(numbered(N)).build(params)
    except RequestError as error:
        assert error.param == name
