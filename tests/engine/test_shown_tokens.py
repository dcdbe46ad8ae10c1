"""A control token that a request wants to see is part of the text, for grammars and readers."""

from app.engine.constraint import make_constraint, token_table
from app.engine.request import Grammar, GrammarKind, Trigger
from app.sampling.grammar.lark import HEADER
from app.tokenizer.base import SpecialIds, Vocab
from tests.helpers.fake_tokenizer import EOS, LETTERS, LetterTokenizer

MARK = 27
A = 0


class MarkedTokenizer(LetterTokenizer):
    """Letters, an end, and a control token."""

    vocab = Vocab(
        tokens=[*LETTERS, "</s>", "<call>"],
        types=[1] * 26 + [3, 3],
        scores=[0.0] * 28,
        ids={text: i for i, text in enumerate([*LETTERS, "</s>", "<call>"])},
        special=SpecialIds(eos=EOS),
        eog=frozenset({EOS}),
    )

    def piece(self, token: int, *, special: bool) -> bytes:
        return b"" if token >= EOS and not special else self.vocab.tokens[token].encode()


def test_only_shown_control_tokens_have_text() -> None:
    assert token_table(MarkedTokenizer()).pieces[MARK] == b""
    shown = token_table(MarkedTokenizer(), frozenset({MARK})).pieces
    assert shown[MARK] == b"<call>"
    assert shown[EOS] == b""


def test_a_grammar_may_demand_a_shown_control_token() -> None:
    grammar = Grammar(GrammarKind.LARK, f'{HEADER}start: "<call>" "a"\n')
    constraint = make_constraint(grammar, MarkedTokenizer(), shown=frozenset({MARK}))
    assert constraint.allows(MARK)
    constraint.accept(MARK)
    assert list(constraint.mask().nonzero()[0]) == [A]


def test_a_shown_control_token_wakes_a_grammar_and_a_hidden_one_does_not() -> None:
    source = f'{HEADER}start: (marked "a")+ ANY\nmarked[lazy]: ANY "<call>"\nANY: /(.|\\n)*/\n'
    grammar = Grammar(GrammarKind.LARK, source, Trigger("<call>"))
    for shown, bound in ((frozenset({MARK}), True), (frozenset[int](), False)):
        constraint = make_constraint(grammar, MarkedTokenizer(), shown=shown)
        for token in (A, 1, MARK):
            assert constraint.allows(token)
            constraint.accept(token)
        assert constraint.allows(1) is not bound
        assert constraint.allows(A)
