"""Constraints over a vocabulary: masks, single answers, the end, copies and errors."""

import numpy as np
import pytest

from app.errors import RequestError
from app.sampling.chain import SamplerFactory
from app.sampling.constraint import Constraint
from app.sampling.errors import SamplingError
from app.sampling.grammar.compiler import gbnf_to_lark
from app.sampling.grammar.matcher import GrammarConstraint, GrammarEngine, TokenTable
from app.sampling.params import SamplingParams
from tests.sampling.fake_vocab import FakeVocab

PIECES = [b"a", b"aa", b"aaa", b"b", b"", b"", b"\0a", b"\xff", b"\xc3", b"\xa9", b"a", b"ab\xc3"]
A, AA, AAA, B, END, OTHER_END, NUL, FF, C3, A9, SECOND_A, ABC3 = range(len(PIECES))


@pytest.fixture(scope="module")
def engine() -> GrammarEngine:
    return GrammarEngine(TokenTable(PIECES, frozenset({END, OTHER_END})))


def start(engine: GrammarEngine, body: str) -> GrammarConstraint:
    return engine.constraint(gbnf_to_lark(f"root ::= {body}"))


def allowed(constraint: Constraint) -> set[int]:
    mask = constraint.mask()
    assert mask.dtype == np.bool_
    tokens = set(map(int, np.flatnonzero(mask)))
    assert {token for token in range(len(mask)) if constraint.allows(token)} == tokens
    return tokens


def test_every_token_that_fits_is_allowed_not_only_the_usual_one(engine: GrammarEngine) -> None:
    constraint = start(engine, '"aaaa"')
    assert allowed(constraint) == {A, AA, AAA, SECOND_A}
    constraint.accept(AAA)
    assert allowed(constraint) == {A, SECOND_A}


def test_all_end_tokens_are_allowed_where_the_text_may_end(engine: GrammarEngine) -> None:
    constraint = start(engine, '"a"{2,3}')
    constraint.accept(AA)
    assert allowed(constraint) == {A, SECOND_A, END, OTHER_END}
    constraint.accept(A)
    assert allowed(constraint) == {END, OTHER_END}
    constraint.accept(OTHER_END)


def test_tokens_without_text_are_never_allowed(engine: GrammarEngine) -> None:
    assert allowed(start(engine, ".*")).isdisjoint({NUL, FF})


def test_a_character_may_be_spread_over_tokens(engine: GrammarEngine) -> None:
    constraint = start(engine, '"abé" [^é]')
    assert allowed(constraint) == {A, SECOND_A, ABC3}
    constraint.accept(ABC3)
    assert allowed(constraint) == {A9}
    constraint.accept(A9)
    assert allowed(constraint) == {A, B, SECOND_A, C3}


def test_a_clone_goes_its_own_way(engine: GrammarEngine) -> None:
    constraint = start(engine, '"a" "b"')
    constraint.accept(A)
    clone = constraint.clone()
    clone.accept(B)
    assert allowed(clone) == {END, OTHER_END}
    assert allowed(constraint) == {B}
    clone.reset()
    assert allowed(clone) == {A, SECOND_A}


def test_a_token_that_does_not_fit_is_an_error_and_reset_recovers(engine: GrammarEngine) -> None:
    constraint = start(engine, '"aa"')
    with pytest.raises(SamplingError, match=f"token {B} does not fit"):
        constraint.accept(B)
    with pytest.raises(SamplingError):
        constraint.mask()
    constraint.reset()
    assert allowed(constraint) == {A, AA, SECOND_A}


def test_a_text_that_the_vocabulary_cannot_spell_is_refused_or_an_error(
    engine: GrammarEngine,
) -> None:
    with pytest.raises(RequestError, match="no text can match"):
        start(engine, '"x"')
    constraint = start(engine, '"a" "x"')
    constraint.accept(A)
    with pytest.raises(SamplingError, match="no text can match"):
        constraint.mask()


def test_a_vocabulary_without_an_end_token_works() -> None:
    constraint = start(GrammarEngine(TokenTable([b"a", b"b"], frozenset())), '"a" "b"?')
    assert allowed(constraint) == {0}
    constraint.accept(0)
    assert allowed(constraint) == {1}
    constraint.accept(1)
    with pytest.raises(SamplingError, match="no token"):
        constraint.mask()


def test_a_mask_is_as_wide_as_the_logits(engine: GrammarEngine) -> None:
    constraint = engine.constraint(gbnf_to_lark('root ::= "a"'), n_vocab=40)
    assert constraint.mask().shape == (40,)
    assert np.flatnonzero(constraint.mask()).tolist() == [A, SECOND_A]
    assert not constraint.allows(39)


def test_the_sampler_follows_a_grammar_to_its_end(engine: GrammarEngine) -> None:
    vocab = FakeVocab(tuple(PIECES), eog_tokens=(END, OTHER_END))
    params = SamplingParams(temperature=0.0)
    sampler = SamplerFactory(vocab).build(params, start(engine, '"a" "b"'))
    logits = np.zeros(len(PIECES), dtype=np.float32)
    logits[[A9, B, END]] = 3.0, 2.0, 1.0
    chosen = []
    for _ in range(3):
        token = sampler.sample(logits).token
        sampler.accept(token)
        chosen.append(token)
    assert chosen == [A, B, END]
