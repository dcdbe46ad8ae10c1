"""A request's grammar and the model's tokenizer → the constraint of a sampler.

The engine calls this when a request is submitted, before it takes a slot. What llguidance knows of
a vocabulary is built with the first grammar and kept as long as the tokenizer.
"""

from collections.abc import Callable
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

from app.engine.request import Grammar, GrammarKind, Trigger
from app.sampling.constraint import Constraint
from app.sampling.grammar.compiler import gbnf_to_lark, json_schema_to_lark
from app.sampling.grammar.matcher import GrammarEngine, TokenTable
from app.sampling.grammar.triggered import TriggeredConstraint, Watch
from app.tokenizer.base import Tokenizer

_WRITERS: Final[dict[GrammarKind, Callable[[str], str]]] = {
    GrammarKind.GBNF: gbnf_to_lark,
    GrammarKind.JSON_SCHEMA: json_schema_to_lark,
    GrammarKind.LARK: str,
}

Shown = frozenset[int]


class _Engines:
    """One grammar engine per tokenizer and set of shown tokens. Any thread may use it."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Tokenizer, dict[Shown, GrammarEngine]] = WeakKeyDictionary()
        self._lock = Lock()

    def of(self, tokenizer: Tokenizer, shown: Shown) -> GrammarEngine:
        """Return the engine of a tokenizer; the first call for each takes up to a second."""
        with self._lock:
            engines = self._known.setdefault(tokenizer, {})
            engine = engines.get(shown)
            if engine is None:
                engine = engines[shown] = GrammarEngine(token_table(tokenizer, shown))
            return engine


_ENGINES: Final = _Engines()


def make_constraint(
    grammar: Grammar,
    tokenizer: Tokenizer,
    n_vocab: int | None = None,
    shown: Shown = frozenset(),
) -> Constraint:
    """Return a constraint at the start of the grammar.

    Its masks have one entry for each token, or `n_vocab` where the model has more logits; `shown`
    are the control tokens that are part of the text.

    Raises: RequestError when the grammar is malformed, too large or not supported.
    """
    lark = _WRITERS[grammar.kind](grammar.source)
    constraint = _ENGINES.of(tokenizer, shown).constraint(lark, n_vocab)
    if grammar.trigger is None:
        return constraint
    n_masked = n_vocab or tokenizer.vocab.n_tokens
    return TriggeredConstraint(
        constraint, _watch(grammar.trigger), _text_of(tokenizer, shown), n_masked
    )


def prepare_constraints(tokenizer: Tokenizer) -> None:
    """Build ahead what the first grammar of a tokenizer would have to wait for."""
    _ENGINES.of(tokenizer, frozenset())


def token_table(tokenizer: Tokenizer, shown: Shown = frozenset()) -> TokenTable:
    """Return the bytes that each token adds to an answer; none for control tokens not `shown`."""
    tokens = range(tokenizer.vocab.n_tokens)
    text_of = _text_of(tokenizer, shown)
    return TokenTable(
        pieces=[text_of(token) for token in tokens],
        end_ids=frozenset(token for token in tokens if tokenizer.is_eog(token)),
    )


def _text_of(tokenizer: Tokenizer, shown: Shown) -> Callable[[int], bytes]:
    """Return what gives the bytes of a token; none for ids that only the model's logits have."""
    n_tokens = tokenizer.vocab.n_tokens

    def text_of(token: int) -> bytes:
        return tokenizer.piece(token, special=token in shown) if token < n_tokens else b""

    return text_of


def _watch(trigger: Trigger) -> Watch:
    return Watch(
        trigger.word.encode(),
        trigger.thought_start.encode(),
        trigger.thought_end.encode(),
        trigger.in_thought,
    )
