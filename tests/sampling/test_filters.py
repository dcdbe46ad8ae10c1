"""Filters on four tokens with probabilities that a reader can check in the head."""

from collections.abc import Callable

import numpy as np
import pytest

from app.sampling import filters
from app.sampling.candidates import Candidates, softmax, top_order
from app.sampling.rng import Mt19937


def of(*probs: float) -> Candidates:
    return Candidates(np.log(np.array(probs, dtype=np.float32)))


def shares(c: Candidates) -> dict[int, float]:
    probs = softmax(c).tolist()
    return {token: round(p, 4) for token, p in zip(c.token_ids().tolist(), probs, strict=True)}


RISING = of(0.1, 0.2, 0.3, 0.4)


def test_top_k_keeps_the_best_in_falling_order() -> None:
    kept = filters.top_k(RISING, 2)
    assert kept.token_ids().tolist() == [3, 2]
    assert kept.is_sorted


def test_top_k_above_the_number_of_candidates_only_sorts() -> None:
    assert filters.top_k(RISING, 99).token_ids().tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize(("p", "kept"), [(0.0, [3]), (0.39, [3]), (0.41, [3, 2]), (0.69, [3, 2])])
def test_top_p_keeps_what_first_reaches_p(p: float, kept: list[int]) -> None:
    assert filters.top_p(RISING, p, 0).token_ids().tolist() == kept


def test_top_p_is_the_same_on_sorted_candidates() -> None:
    assert filters.top_p(RISING.sort(), 0.41, 0).token_ids().tolist() == [3, 2]


def test_top_p_keeps_all_when_rounding_leaves_the_sum_below_p() -> None:
    assert filters.top_p(RISING, 0.99999999, 0).size == 4


@pytest.mark.parametrize("n", [2000, 5000])
def test_top_p_of_many_equal_tokens_keeps_the_first_by_id(n: int) -> None:
    kept = filters.top_p(Candidates(np.zeros(n, dtype=np.float32)), 0.5, 0)
    # The float32 sum of n equal shares may need one more or less than half of them.
    assert abs(kept.size - n // 2) <= 1
    assert kept.token_ids().tolist() == list(range(kept.size))


def test_min_p_leaves_the_order_as_it_is() -> None:
    kept = filters.min_p(of(0.3, 0.1, 0.4, 0.2), 0.6, 0)
    assert kept.token_ids().tolist() == [0, 2]
    assert not kept.is_sorted


def test_min_p_falls_back_to_the_best_when_too_few_pass() -> None:
    kept = filters.min_p(of(0.3, 0.1, 0.4, 0.2), 0.9, 3)
    assert kept.token_ids().tolist() == [2, 0, 3]
    assert kept.is_sorted


def test_typical_prefers_tokens_as_surprising_as_the_average() -> None:
    kept = filters.typical_p(of(0.4, 0.2, 0.2, 0.2), 0.5, 0)
    assert kept.token_ids().tolist() == [1, 2, 3]
    assert not kept.is_sorted


def test_typical_is_defined_when_a_token_is_impossible() -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        assert filters.typical_p(of(0.97, 0.03, 0.0), 0.5, 0).token_ids().tolist() == [0]


def test_top_n_sigma_masks_and_keeps_the_length() -> None:
    kept = filters.top_n_sigma(RISING, 1.0)
    assert shares(kept) == {0: 0.0, 1: 0.0, 2: 0.4286, 3: 0.5714}


def test_xtc_removes_all_but_the_least_likely_of_the_top() -> None:
    kept = filters.xtc(of(0.4, 0.3, 0.2, 0.1), 1.0, 0.19, 0, Mt19937(0))
    assert kept.token_ids().tolist() == [2, 3]


def test_xtc_spares_when_chance_does_not_call() -> None:
    assert filters.xtc(RISING, 1e-9, 0.1, 0, Mt19937(0)) is RISING


def test_xtc_spares_min_keep() -> None:
    assert filters.xtc(RISING, 1.0, 0.19, 3, Mt19937(0)).size == 4


def test_xtc_draws_one_float_unless_a_single_candidate_is_left() -> None:
    rng, control = Mt19937(1), Mt19937(1)
    filters.xtc(of(1.0), 1.0, 0.1, 0, rng)
    filters.xtc(RISING, 1.0, 0.1, 0, rng)
    control.word()
    assert rng.word() == control.word()


def test_temperature_half_squares_the_probabilities() -> None:
    assert shares(filters.temperature(RISING, 0.5)) == {0: 0.0333, 1: 0.1333, 2: 0.3, 3: 0.5333}


@pytest.mark.parametrize("temp", [0.0, -1.0, 1e-45])
def test_temperature_zero_or_next_to_it_leaves_the_best(temp: float) -> None:
    with np.errstate(over="ignore"):
        assert shares(filters.temperature(of(0.1, 0.4, 0.4, 0.1), temp)) == {0: 0, 1: 1, 2: 0, 3: 0}


def test_dynamic_temperature_is_high_for_even_and_low_for_peaked_candidates() -> None:
    even = filters.dynamic_temperature(of(0.25, 0.25, 0.25, 0.25), 1.0, 0.5, 1.0)
    assert even.logits.tolist() == pytest.approx([float(np.log(0.25)) / 1.5] * 4)
    peaked = of(1.0, 1e-9, 1e-9, 1e-9)
    cooled = filters.dynamic_temperature(peaked, 1.0, 0.5, 1.0)
    assert cooled.logits[1] / peaked.logits[1] == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("n", [1, 60, 2000, 50_000])
@pytest.mark.parametrize("k", [1, 40, 400, 60_000])
@pytest.mark.parametrize("step", [0.0, 0.25], ids=["distinct", "many ties"])
def test_top_order_is_a_stable_sort(n: int, k: int, step: float) -> None:
    values = np.random.default_rng(n + k).standard_normal(n).astype(np.float32)
    if step:
        values = np.round(values / step) * np.float32(step)  # also makes -0.0 beside 0.0
    assert np.array_equal(top_order(values, k), np.argsort(-values, kind="stable")[:k])


def test_top_order_with_fewer_finite_values_than_asked_for() -> None:
    values = np.full(50_000, -np.inf, dtype=np.float32)
    values[[7, 70, 700]] = [1, 3, 2]
    assert top_order(values, 5).tolist() == [70, 700, 7, 0, 1]


FILTERS: dict[str, Callable[[Candidates], Candidates]] = {
    "top_k": lambda c: filters.top_k(c, 2),
    "top_p": lambda c: filters.top_p(c, 0.5, 0),
    "min_p": lambda c: filters.min_p(c, 0.5, 0),
    "typical_p": lambda c: filters.typical_p(c, 0.5, 0),
    "top_n_sigma": lambda c: filters.top_n_sigma(c, 1.0),
    "temperature": lambda c: filters.temperature(c, 0.5),
    "dynamic_temperature": lambda c: filters.dynamic_temperature(c, 1.0, 0.5, 1.0),
    "xtc": lambda c: filters.xtc(c, 1.0, 0.1, 0, Mt19937(0)),
}


@pytest.mark.parametrize("name", FILTERS)
def test_no_filter_changes_the_logits_it_was_given(name: str) -> None:
    before = RISING.logits.copy()
    FILTERS[name](RISING)
    assert np.array_equal(RISING.logits, before)


@pytest.mark.parametrize("name", FILTERS)
def test_every_filter_passes_a_single_candidate(name: str) -> None:
    assert FILTERS[name](of(1.0)).token_ids().tolist() == [0]
