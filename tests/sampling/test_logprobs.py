"""Log-probabilities against NumPy in double precision, and what is reported after the chain."""

import math

import numpy as np
import pytest

from app.sampling.errors import SamplingError
from app.sampling.logprobs import IMPOSSIBLE, chain_logprobs, raw_logprobs
from tests.sampling.fake_vocab import sampler


def logits(n: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return (np.random.default_rng(n).standard_normal(n) * 4).astype(np.float32)


@pytest.mark.parametrize("n", [4, 512, 50_000])
def test_raw_logprobs_are_the_log_softmax(n: int) -> None:
    values = logits(n)
    exact = values.astype(np.float64) - np.log(np.exp(values.astype(np.float64)).sum())
    found = raw_logprobs(values, 3, 10)
    assert found.token == 3
    # float32 exponentials: 1e-7 relative on the sum, so about as much on its logarithm.
    assert found.logprob == pytest.approx(exact[3], abs=1e-6)
    best = np.argsort(-values, kind="stable")[:10]
    assert [entry.token for entry in found.top] == best.tolist()
    assert [entry.logprob for entry in found.top] == pytest.approx(exact[best].tolist(), abs=1e-6)


def test_no_top_is_asked_for() -> None:
    assert raw_logprobs(logits(8), 1, 0).top == ()


def test_more_than_there_are_gives_all() -> None:
    assert len(raw_logprobs(logits(8), 1, 20).top) == 8


def test_impossible_token_has_a_finite_logprob_and_no_probability() -> None:
    values = np.array([0, -np.inf, 0], dtype=np.float32)
    found = raw_logprobs(values, 1, 3)
    assert found.logprob == found.top[-1].logprob == IMPOSSIBLE
    assert found.prob == 0
    assert found.top[0].prob == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_are_refused(bad: float) -> None:
    with pytest.raises(SamplingError):
        raw_logprobs(np.array([0, bad], dtype=np.float32), 0, 1)


def test_certain_token_has_logprob_zero() -> None:
    assert raw_logprobs(np.array([100, -100], dtype=np.float32), 0, 1).logprob == 0


def test_chain_reports_ten_candidates_when_the_chain_leaves_ten() -> None:
    choice = sampler(64, temperature=1.0, top_p=1, min_p=0).sample(np.zeros(64, dtype=np.float32))
    found = chain_logprobs(choice, 10)
    assert len(found.top) == 10
    assert all(entry.prob == pytest.approx(1 / 40) for entry in (found, *found.top))


def test_chain_reports_fewer_when_their_probabilities_make_up_one() -> None:
    values = np.array([3, 2, 1, -50], dtype=np.float32)
    found = chain_logprobs(sampler(4, temperature=1.0, min_p=0.2).sample(values), 10)
    assert [entry.token for entry in found.top] == [0, 1]
    assert math.fsum(entry.prob for entry in found.top) == pytest.approx(1)
    assert found.prob in [entry.prob for entry in found.top]


def test_chain_never_reports_probability_zero() -> None:
    found = chain_logprobs(sampler(8, temperature=0).sample(logits(8)), 10)
    assert [(entry.token, entry.prob) for entry in found.top] == [(int(logits(8).argmax()), 1.0)]


def test_candidates_out_of_order_are_reported_best_first() -> None:
    request = {"samplers": "m", "min_p": 0.01, "seed": 1}
    choice = sampler(8, **request).sample(np.arange(8, dtype=np.float32))
    assert [entry.token for entry in chain_logprobs(choice, 3).top] == [7, 6, 5]
