"""A request's grammar and the model's tokenizer → the constraint of a sampler.

The engine calls this when a request is submitted, before it takes a slot. What llguidance knows of
a vocabulary is built with the first grammar and kept as long as the tokenizer.
"""

from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

from app.engine.request import Grammar, GrammarKind
from app.sampling.constraint import Constraint
from app.sampling.grammar.compiler import gbnf_to_lark, json_schema_to_lark
from app.sampling.grammar.matcher import GrammarEngine, TokenTable
from app.tokenizer.base import Tokenizer

_WRITERS: Final = {
    GrammarKind.GBNF: gbnf_to_lark,
    GrammarKind.JSON_SCHEMA: json_schema_to_lark,
}


class _Engines:
    """One grammar engine per tokenizer. Any thread may use it."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Tokenizer, GrammarEngine] = WeakKeyDictionary()
        self._lock = Lock()

    def of(self, tokenizer: Tokenizer) -> GrammarEngine:
        """Return the engine of a tokenizer; the first call for each takes up to a second."""
        with self._lock:
            engine = self._known.get(tokenizer)
            if engine is None:
                engine = self._known[tokenizer] = GrammarEngine(token_table(tokenizer))
            return engine


_ENGINES: Final = _Engines()


def make_constraint(
    grammar: Grammar, tokenizer: Tokenizer, n_vocab: int | None = None
) -> Constraint:
    """Return a constraint at the start of the grammar.

    Its masks have one entry for each token, or `n_vocab` where the model has more logits.

    Raises: RequestError when the grammar is malformed, too large or not supported.
    """
    lark = _WRITERS[grammar.kind](grammar.source)
    return _ENGINES.of(tokenizer).constraint(lark, n_vocab)


def prepare_constraints(tokenizer: Tokenizer) -> None:
    """Build ahead what the first grammar of a tokenizer would have to wait for."""
    _ENGINES.of(tokenizer)


def token_table(tokenizer: Tokenizer) -> TokenTable:
    """Return the bytes that each token adds to an answer; none for control tokens."""
    tokens = range(tokenizer.vocab.n_tokens)
    return TokenTable(
        pieces=[tokenizer.piece(token, special=False) for token in tokens],
        end_ids=frozenset(token for token in tokens if tokenizer.is_eog(token)),
    )
