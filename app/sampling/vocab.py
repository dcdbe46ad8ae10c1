"""What sampling needs to know about a vocabulary, and how a string can break over its tokens.

The engine adapts its tokenizer to `SamplingVocab`; this room imports no tokenizer. `BreakerIndex`
turns the sequence breakers of DRY into token sequences, as get_overlapping_token_sequences in
llama.cpp's src/llama-sampler.cpp does. It reads every piece of the vocabulary once (about a
microsecond a token) and keeps the answers, so keep one per model.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Final, Protocol

Breakers = Mapping[int, frozenset[tuple[int, ...]]]
"""First token of a breaker → the tokens that may follow to complete it; () needs none."""

_MAX_BYTES: Final = 40
_MAX_TAIL: Final = 20
_CACHED_BREAKERS: Final = 256


class SamplingVocab(Protocol):
    """The tokens of a model."""

    @property
    def n_vocab(self) -> int:
        """Number of tokens, which is the number of logits."""

    @property
    def eog_tokens(self) -> Sequence[int]:
        """Tokens that end a generation."""

    @property
    def suppress_tokens(self) -> Sequence[int]:
        """Tokens that the model file forbids to generate."""

    def tokenize(self, text: str) -> Sequence[int]:
        """Return the tokens of a text: no special tokens added, none recognised in it."""

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token stands for, special tokens written out."""


class BreakerIndex:
    """Finds the token sequences that contain a string; may be used from any thread."""

    def __init__(self, vocab: SamplingVocab) -> None:
        self._vocab = vocab
        self._find = lru_cache(maxsize=_CACHED_BREAKERS)(self._search)

    @cached_property
    def _pieces(self) -> list[bytes]:
        return [self._vocab.piece(token) for token in range(self._vocab.n_vocab)]

    def breakers(self, texts: Sequence[str]) -> Breakers:
        """Return the union of the sequences of all texts; empty texts have none."""
        found: dict[int, frozenset[tuple[int, ...]]] = {}
        for text in texts:
            for token, tails in self._find(text.encode("utf-8", "replace")[:_MAX_BYTES]).items():
                found[token] = found.get(token, frozenset()) | tails
        return found

    def _search(self, text: bytes) -> Breakers:
        if not text:
            return {}
        found: dict[int, set[tuple[int, ...]]] = {
            token: {()} for token, piece in enumerate(self._pieces) if text in piece
        }
        heads = tuple(text[:n] for n in range(1, len(text)))
        tails: dict[bytes, tuple[int, ...]] = {}
        begun = [token for token, piece in enumerate(self._pieces) if piece.endswith(heads)]
        for token in begun:
            if token not in found:
                ends = [head for head in heads if self._pieces[token].endswith(head)]
                tails.update({h: self._tail(text[len(h) :]) for h in ends if h not in tails})
                found[token] = {tails[head] for head in ends}
        return {token: frozenset(after) for token, after in found.items()}

    def _tail(self, text: bytes) -> tuple[int, ...]:
        return tuple(self._vocab.tokenize(text.decode("utf-8", "replace"))[:_MAX_TAIL])
