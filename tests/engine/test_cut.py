"""How a step is cut into micro-batches: nothing lost, and nothing that depends on company."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.runner import FEW, cut
from app.engine.step import SequenceChunk, StepPlan
from app.kernels.cpu.emit_matmul import MAX_COLUMNS

LENGTHS = st.lists(st.integers(1, 700), min_size=1, max_size=9)


def plan(lengths: list[int]) -> StepPlan:
    """A chunk for each sequence, numbered tokens behind 5 others."""
    return StepPlan(
        tuple(SequenceChunk(seq, list(range(n)), 5, True) for seq, n in enumerate(lengths))
    )


def n_tokens(piece: list[SequenceChunk]) -> int:
    return sum(len(chunk.tokens) for chunk in piece)


def test_few_means_what_the_kernels_mean() -> None:
    assert FEW == MAX_COLUMNS


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 600))
def test_every_token_comes_once_in_order_and_the_last_gives_the_result(
    lengths: list[int], n_ubatch: int
) -> None:
    pieces = list(cut(plan(lengths), n_ubatch))
    assert all(0 < n_tokens(piece) <= n_ubatch for piece in pieces)
    for seq, n in enumerate(lengths):
        parts = [chunk for piece in pieces for chunk in piece if chunk.seq == seq]
        assert [token for part in parts for token in part.tokens] == list(range(n))
        assert [part.n_past for part in parts] == [5 + part.tokens[0] for part in parts]
        assert [part.wants_logits for part in parts] == [False] * (len(parts) - 1) + [True]


@settings(deadline=None)
@given(LENGTHS, st.integers(2 * FEW + 2, 600))
def test_few_and_many_tokens_of_a_sequence_never_share_a_micro_batch(
    lengths: list[int], n_ubatch: int
) -> None:
    for piece in cut(plan(lengths), n_ubatch):
        assert len({len(chunk.tokens) <= FEW for chunk in piece}) == 1
        for chunk in piece:
            assert (len(chunk.tokens) <= FEW) == (lengths[chunk.seq] <= FEW)


def test_running_streams_come_before_prompts() -> None:
    pieces = list(cut(plan([600, 1, 1]), 512))
    assert [[chunk.seq for chunk in piece] for piece in pieces] == [[1, 2], [0], [0]]


@pytest.mark.parametrize(("n", "parts"), [(512, [512]), (513, [504, 9]), (1030, [512, 509, 9])])
def test_a_long_prompt_leaves_no_short_rest(n: int, parts: list[int]) -> None:
    assert [n_tokens(piece) for piece in cut(plan([n]), 512)] == parts
