"""llguidance as the grammar of the sampler chain: vocabulary in, constraints out.

A `GrammarEngine` belongs to one vocabulary and costs up to a second to build; a `GrammarConstraint`
belongs to one sequence and one thread at a time. llguidance is loaded with the first engine, and
compiles and masks without the interpreter lock. Control tokens are never allowed: their text is no
part of the answer, though llama.cpp would let them stand for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import numpy as np

from app.sampling.constraint import Mask
from app.sampling.errors import SamplingError
from app.sampling.grammar.deep_stack import on_deep_stack
from app.sampling.grammar.limits import refusal

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_SPECIAL_MARK: Final = b"\xff"
"""No UTF-8 text holds this byte, so a token that begins with it matches no grammar."""
_NEVER_FIRST: Final = (b"\0", _SPECIAL_MARK)
"""llama.cpp allows no token that begins with a zero byte either."""
_MAX_LEXER_STATES: Final = 50_000
"""A state takes one to two kilobytes."""
_MAX_ITEMS_IN_ROW: Final = 1000
_MAX_ITEMS_IN_STEP: Final = 20_000
"""The time for a row grows with the square of its items; a mask at both limits takes 0.2 s."""
_MAX_CAUSE_CHARS: Final = 300
_LISTING: Final = re.compile(r"\s*\d+ \| ")
_PLACE: Final = re.compile(r"^at \d+\(\d+\): ")
_NO_DETAILS: Final = "<non-verbose/>"


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The vocabulary as grammars see it: `pieces[id]` are the bytes of a token, b"" for one that
    stands for no text; `end_ids` are the tokens that end a generation.
    """

    pieces: Sequence[bytes]
    end_ids: frozenset[int]


class _Vocabulary:
    """What llguidance wants to know of a tokenizer."""

    bos_token_id: None = None

    def __init__(self, table: TokenTable) -> None:
        n_tokens = len(table.pieces)
        # A vocabulary without an end still needs one to be told about.
        self.end_ids = sorted(table.end_ids) or [n_tokens]
        self.eos_token_id = self.end_ids[0]
        self.tokens = list(table.pieces) + [b""] * (self.end_ids[-1] + 1 - n_tokens)
        self.special_token_ids = list(self.end_ids)
        for token, piece in enumerate(self.tokens):
            if token in table.end_ids or not piece or piece.startswith(_NEVER_FIRST):
                self.tokens[token] = b"%s<[%d]>" % (_SPECIAL_MARK, token)

    def __call__(self, text: bytes) -> list[int]:
        """Needed to force a tokenization, which `lark.HEADER` switches off."""
        return []


class GrammarEngine:
    """Compiles grammars for one vocabulary. Any thread may use it."""

    __slots__ = ("_end_ids", "_limits", "_n_tokens", "_tokenizer")

    def __init__(self, table: TokenTable) -> None:
        from llguidance import LLParserLimits, LLTokenizer, TokenizerWrapper

        vocabulary = _Vocabulary(table)
        self._n_tokens = len(table.pieces)
        self._end_ids = table.end_ids
        self._tokenizer: LLTokenizer = LLTokenizer(
            TokenizerWrapper(vocabulary), eos_token=vocabulary.end_ids
        )
        self._limits: LLParserLimits = LLParserLimits(
            max_lexer_states=_MAX_LEXER_STATES,
            max_items_in_row=_MAX_ITEMS_IN_ROW,
            step_max_items=_MAX_ITEMS_IN_STEP,
            verbose_errors=False,
        )

    def constraint(self, lark: str, n_vocab: int | None = None) -> GrammarConstraint:
        """Return a constraint at the start of a grammar, as `compiler` writes it.

        Its masks have `n_vocab` entries, by default one for each token of the vocabulary.

        Raises: RequestError when the grammar is too complex, or no text can match it.
        """
        matcher = on_deep_stack(lambda: self._compile(lark))
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise refusal(_cause(matcher))
        return GrammarConstraint(matcher, self._n_tokens, n_vocab or self._n_tokens, self._end_ids)

    def _compile(self, lark: str) -> LLMatcher:
        from llguidance import LLMatcher

        grammar = LLMatcher.grammar_from_lark(lark)
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)


@dataclass(slots=True)
class GrammarConstraint:
    """Follows the text of one sequence; fits `app.sampling.constraint.Constraint`."""

    _start: LLMatcher
    _n_tokens: int
    _n_vocab: int
    _end_ids: frozenset[int]
    _matcher: LLMatcher = field(init=False)

    def __post_init__(self) -> None:
        self._matcher = self._start.deep_copy()

    def allows(self, token: int) -> bool:
        """Return whether the text may go on with this token.

        Raises: SamplingError when the grammar became too complex.
        """
        if token in self._end_ids:
            return self._matcher.is_accepting()
        if not 0 <= token < self._n_tokens:
            return False
        allowed = self._matcher.validate_tokens([token]) == 1
        self._check()
        return allowed

    def mask(self) -> Mask:
        """Return for each token of the vocabulary (n_vocab,) whether the text may go on with it.

        Raises: SamplingError when the grammar became too complex, or no token fits.
        """
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        n_known = min(self._n_tokens, self._n_vocab)
        mask = np.zeros(self._n_vocab, dtype=np.bool_)
        mask[:n_known] = np.unpackbits(packed, count=n_known, bitorder="little")
        if not mask.any():
            raise SamplingError("grammar: no token of the vocabulary fits what must come next")
        return mask

    def accept(self, token: int) -> None:
        """Follow a token. Raises: SamplingError when the grammar does not allow it."""
        if not 0 <= token < self._n_tokens:
            raise SamplingError(f"grammar: token {token}, expected 0 to {self._n_tokens - 1}")
        if not self._matcher.consume_token(token):
            raise SamplingError(f"grammar: token {token} does not fit: {_cause(self._matcher)}")

    def reset(self) -> None:
        """Go back to the start."""
        self._matcher = self._start.deep_copy()

    def clone(self) -> GrammarConstraint:
        """Return an independent copy."""
        copy = GrammarConstraint(self._start, self._n_tokens, self._n_vocab, self._end_ids)
        copy._matcher = self._matcher.deep_copy()
        return copy

    def _check(self) -> None:
        if self._matcher.is_error():
            raise SamplingError(f"grammar: {_cause(self._matcher)}")


def _cause(matcher: LLMatcher) -> str:
    """The message of llguidance, without the listing of our own text that it appends."""
    lines = takewhile(lambda line: not _LISTING.match(line), matcher.get_error().splitlines())
    words = " ".join(lines).replace(_NO_DETAILS, "").split()
    cause = _PLACE.sub("", " ".join(words))[:_MAX_CAUSE_CHARS] or "unknown cause"
    return "no text can match it" if cause.startswith("NoExtension") else cause
