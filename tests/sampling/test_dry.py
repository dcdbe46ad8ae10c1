"""DRY: repetitions are found, breakers end them, the penalty grows with their length."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sampling.candidates import Candidates
from app.sampling.dry import Dry, DryParams, common_prefixes, repetition_limit, repetitions

A, B, C, Y = range(4)


def newest_first(*tokens: int) -> list[int]:
    return list(reversed(tokens))


def penalty_of(stage: Dry, tokens: Sequence[int], n: int = 4) -> list[float]:
    stage.accept(tokens)
    after = stage.apply(Candidates(np.zeros(n, dtype=np.float32)))
    return [-logit for logit in after.logits.tolist()]


@given(st.lists(st.integers(0, 2), max_size=40))
def test_common_prefixes_are_what_counting_gives(tokens: list[int]) -> None:
    def count(k: int) -> int:
        n = 0
        while k + n < len(tokens) and tokens[n] == tokens[k + n]:
            n += 1
        return n

    assert common_prefixes(tokens) == [0 if k == 0 else count(k) for k in range(len(tokens))]


def test_longest_repetition_that_each_token_would_prolong() -> None:
    # ... a b c was followed by c; c by b; b c by y.
    recent = newest_first(A, B, C, C, B, C, Y, A, B, C)
    assert repetitions(recent, 99, 1) == {C: 3, B: 1, Y: 2}
    assert repetitions(recent, 99, 2) == {C: 3, Y: 2}
    assert repetitions(recent, 2, 2) == {C: 2, Y: 2}


@pytest.mark.parametrize(
    ("breakers", "limit"),
    [
        ({}, 5),
        ({C: frozenset({()})}, 2),
        ({C: frozenset({(A,)})}, 1),
        ({C: frozenset({(), (A, B)})}, 0),
        ({C: frozenset({(B,)})}, 5),
        ({B: frozenset({(A,)})}, 5),
    ],
    ids=["none", "one token", "two tokens", "longest counts", "other tail", "tail not there yet"],
)
def test_breaker_limits_the_repetition(
    breakers: dict[int, frozenset[tuple[int, ...]]], limit: int
) -> None:
    assert repetition_limit(newest_first(Y, Y, C, A, B), breakers) == limit


def test_penalty_grows_with_the_repetition_beyond_the_allowed_length() -> None:
    stage = Dry(DryParams(0.5, 2.0, 1, 64), {})
    assert penalty_of(stage, [A, B, C, Y, A, B, C]) == [0, 0, 0, 0.5 * 2.0**2]


def test_growth_stops_before_it_overflows() -> None:
    stage = Dry(DryParams(1.0, 3.0, 1, 1000), {})
    # 80 is the last power of three that float32 holds.
    assert penalty_of(stage, [A] * 1000)[A] == np.float32(3.0**80)


def test_a_single_token_breaker_is_never_penalised() -> None:
    tokens = [A, B, Y, A, B]
    assert penalty_of(Dry(DryParams(1.0, 1.5, 1, 64), {}), tokens)[Y] == 1.5
    # The breaker also ends the repetition, so it is put before it.
    breakers = {Y: frozenset({()})}
    assert penalty_of(Dry(DryParams(1.0, 1.5, 1, 64), breakers), tokens)[Y] == 0


def test_only_the_last_tokens_are_looked_at() -> None:
    assert penalty_of(Dry(DryParams(1.0, 1.5, 1, 4), {}), [A, B, C, C, A, B]) == [0, 0, 0, 0]


def test_clone_remembers_and_reset_forgets() -> None:
    stage = Dry(DryParams(1.0, 1.5, 1, 64), {})
    stage.accept([A, B, C, A])
    copy = stage.clone()
    stage.reset()
    assert penalty_of(copy, [B]) == [0, 0, 1.5, 0]
    assert penalty_of(stage, [B]) == [0, 0, 0, 0]
