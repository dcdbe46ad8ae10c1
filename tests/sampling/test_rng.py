"""The generator draws what std::mt19937 and the distributions of libstdc++ draw."""

import numpy as np
import pytest

from app.sampling.rng import RANDOM_SEED, Mt19937, resolve_seed


def words(seed: int, n: int) -> list[int]:
    rng = Mt19937(seed)
    return [rng.word() for _ in range(n)]


def test_ten_thousandth_word_of_the_default_seed_is_what_the_cpp_standard_demands() -> None:
    assert words(5489, 10_000)[-1] == 4123659995


@pytest.mark.parametrize(
    ("seed", "first"),
    # Published outputs of mt19937 for these seeds.
    [(1, [1791095845, 4282876139]), (42, [1608637542, 3421126067]), (0, [2357136044, 2546248239])],
)
def test_first_words_of_known_seeds(seed: int, first: list[int]) -> None:
    assert words(seed, 2) == first


def test_a_double_is_two_words_the_first_one_low() -> None:
    low, high = words(42, 2)
    assert Mt19937(42).uniform() == (low + high * 2.0**32) / 2.0**64


def test_a_float_is_one_word() -> None:
    assert Mt19937(42).uniform_f32() == float(np.float32(1608637542)) / 2**32


def test_no_draw_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # All bits set round up to the end of the range, as a double and as a float.
    monkeypatch.setattr(Mt19937, "word", lambda self: 0xFFFFFFFF)
    assert Mt19937(1).uniform() == 1 - 2.0**-53
    assert Mt19937(1).uniform_f32() == 1 - 2.0**-24


def test_clone_goes_on_from_the_same_place_and_apart() -> None:
    rng = Mt19937(7)
    rng.uniform()
    copy = rng.clone()
    ahead = [rng.uniform() for _ in range(1000)]
    assert [copy.uniform() for _ in range(1000)] == ahead


def test_reset_repeats_the_first_draws() -> None:
    rng = Mt19937(7)
    first = [rng.word() for _ in range(3)]
    rng.reset()
    assert [rng.word() for _ in range(3)] == first


def test_discrete_takes_the_first_index_whose_cumulated_share_reaches_the_draw() -> None:
    weights = np.array([1, 2, 1], dtype=np.float32)
    rng, control = Mt19937(3), Mt19937(3)
    for _ in range(200):
        u = control.uniform()
        assert rng.discrete(weights) == (0 if u <= 0.25 else 1 if u <= 0.75 else 2)


def test_discrete_with_one_weight_draws_nothing() -> None:
    rng = Mt19937(3)
    assert rng.discrete(np.ones(1, dtype=np.float32)) == 0
    assert rng.word() == words(3, 1)[0]


def test_only_the_random_seed_is_replaced() -> None:
    assert resolve_seed(0) == 0
    assert resolve_seed(RANDOM_SEED - 1) == RANDOM_SEED - 1
    assert len({resolve_seed(RANDOM_SEED) for _ in range(8)}) > 1
