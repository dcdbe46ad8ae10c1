"""Logit bias and the penalties for recent tokens."""

from collections.abc import Sequence

import numpy as np
import pytest

from app.sampling.candidates import Candidates
from app.sampling.penalties import LogitBias, Penalties


def flat(n: int = 4, value: float = 1.0) -> Candidates:
    return Candidates(np.full(n, value, dtype=np.float32))


def penalised(
    stage: Penalties, tokens: Sequence[int], c: Candidates
) -> tuple[list[int], list[float]]:
    stage.accept(tokens)
    after = stage.apply(c)
    return after.token_ids().tolist(), after.logits.tolist()


def test_bias_is_added_and_several_for_one_token_add_up() -> None:
    after = LogitBias([1, 3, 1], [0.5, -np.inf, 0.25]).apply(flat())
    assert after.logits.tolist() == [1, 1.75, 1, -np.inf]


def test_bias_finds_tokens_among_filtered_candidates() -> None:
    c = Candidates(np.array([3, 2, 1], dtype=np.float32), np.array([40, 7, 11]), True)
    after = LogitBias([11, 12, 40], [10, 20, 30]).apply(c)
    assert after.logits.tolist() == [33, 2, 11]


def test_bias_ignores_tokens_that_the_model_does_not_have() -> None:
    assert LogitBias([-1, 99], [5, 5]).apply(flat()).logits.tolist() == [1, 1, 1, 1]


def test_repetition_divides_positive_and_multiplies_negative_logits() -> None:
    c = Candidates(np.array([4, -4, 4, -4], dtype=np.float32))
    _, logits = penalised(Penalties(8, 2.0, 0.0, 0.0), [0, 1, 1], c)
    assert logits == [2, -8, 4, -4]


def test_frequency_counts_and_presence_does_not() -> None:
    _, logits = penalised(Penalties(8, 1.0, 0.5, 0.25), [0, 1, 1, 1], flat())
    assert logits == [0.25, -0.75, 1, 1]


def test_tokens_leave_the_window() -> None:
    _, logits = penalised(Penalties(2, 1.0, 1.0, 0.0), [0, 0, 1, 2], flat())
    assert logits == [1, 0, 0, 1]


@pytest.mark.parametrize("parts", [[[0, 1, 2, 3, 3, 1]], [[0], [1, 2], [3, 3, 1]]])
def test_window_is_the_same_whether_tokens_come_at_once_or_in_parts(
    parts: Sequence[Sequence[int]],
) -> None:
    stage = Penalties(3, 1.0, 1.0, 0.0)
    for part in parts:
        stage.accept(part)
    assert stage.apply(flat()).logits.tolist() == [1, 0, 1, -1]


def test_penalties_leave_candidates_unsorted() -> None:
    after = Penalties(3, 1.5, 0.0, 0.0).apply(flat().sort())
    assert not after.is_sorted


def test_reset_forgets_and_clone_does_not_share() -> None:
    stage = Penalties(3, 1.0, 1.0, 0.0)
    stage.accept([1])
    copy = stage.clone()
    copy.accept([2])
    assert stage.apply(flat()).logits.tolist() == [1, 0, 1, 1]
    assert copy.apply(flat()).logits.tolist() == [1, 0, 0, 1]
    stage.reset()
    assert stage.apply(flat()).logits.tolist() == [1, 1, 1, 1]


def test_opposite_infinities_mask_the_token() -> None:
    c = Candidates(np.array([np.inf, 1], dtype=np.float32))
    with np.errstate(invalid="ignore"):
        assert LogitBias([0], [-np.inf]).apply(c).logits.tolist() == [-np.inf, 1]
