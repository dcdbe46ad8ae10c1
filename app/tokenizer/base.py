"""What a vocabulary and a tokenizer are; the contract of this room.

`factory.load_tokenizer` builds both from GGUF metadata; the engine and the API use only what is
declared here. Token texts are kept as the file has them, decoded as UTF-8 with surrogateescape, so
every byte survives. The special ids and the set of end-of-generation tokens are determined as
llama.cpp's vocabulary loader does (src/llama-vocab.cpp, `llama_vocab::impl::load`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Final, Protocol

from app.errors import RequestError

SPACE_MARK: Final = "\u2581"
"""The character that stands for a space in SentencePiece vocabularies."""


class TokenType(IntEnum):
    """The token types of GGUF's `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids of tokens with a task; None where the vocabulary has no such token."""

    bos: int | None = None
    eos: int | None = None
    eot: int | None = None
    eom: int | None = None
    unk: int | None = None
    sep: int | None = None
    pad: int | None = None
    mask: int | None = None
    fim_pre: int | None = None
    fim_suf: int | None = None
    fim_mid: int | None = None
    fim_pad: int | None = None
    fim_rep: int | None = None
    fim_sep: int | None = None

    def items(self) -> Iterable[tuple[str, int | None]]:
        """Return name and id of each."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


@dataclass(frozen=True, slots=True, eq=False)
class Vocab:
    """The tokens of a model and what the file says about them.

    `types[i]` is a `TokenType` number; `ids` maps a text to its id. `add_sep` says that a separator
    stands between two texts that are read together. `left_strip` and `right_strip`
    are the special tokens that swallow white space before or after them; `suppressed` are the
    tokens that are never to be generated.
    """

    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    ids: dict[str, int]
    special: SpecialIds
    eog: frozenset[int]
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    add_space_prefix: bool = False
    left_strip: frozenset[int] = frozenset()
    right_strip: frozenset[int] = frozenset()
    suppressed: tuple[int, ...] = ()

    @property
    def n_tokens(self) -> int:
        """Return the number of tokens."""
        return len(self.tokens)

    def check_id(self, token: int) -> None:
        """Raise RequestError when `token` is not an id of this vocabulary."""
        if not 0 <= token < len(self.tokens):
            raise RequestError(
                f"token id {token} is outside the vocabulary: expected 0 to {len(self.tokens) - 1}",
                "tokens",
            )

    def text(self, token: int | None) -> str:
        """Return the text of a special token as templates see it; "" for None."""
        return "" if token is None else self.tokens[token]

    def raw_bytes(self, token: int) -> bytes:
        """Return the text of a token as the bytes that the file has."""
        return self.tokens[token].encode("utf-8", "surrogateescape")


class Tokenizer(Protocol):
    """Text to ids and back. Implementations are immutable after loading, apart from caches that
    any thread may use.
    """

    @property
    def vocab(self) -> Vocab:
        """Return the vocabulary."""
        ...

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the ids of `text`.

        `add_special` adds BOS and EOS where the model wants them, and never a second one;
        `parse_special` lets control tokens written out in the text become their ids.
        """
        ...

    def piece(self, token: int, *, special: bool) -> bytes:
        """Return the bytes that a token stands for; b"" for control tokens unless `special`.

        Raises:
            RequestError: the id is outside the vocabulary.
        """
        ...

    def decode(self, tokens: Iterable[int], *, special: bool) -> str:
        """Return the joined pieces as text, broken UTF-8 replaced; a leading space stays, as in
        llama-server's /detokenize and streams.

        Raises:
            RequestError: an id is outside the vocabulary.
        """
        ...

    def is_eog(self, token: int) -> bool:
        """Return whether the token ends a generation."""
        ...


def well_formed(text: str) -> str:
    """Return `text` with surrogate pairs joined and lone surrogates replaced by U+FFFD.

    JSON can carry lone surrogates; they have no UTF-8 form, so no token can stand for them.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def without_bos_text(prompt: str, vocab: Vocab) -> str:
    """Return a rendered chat prompt without the BOS and EOS texts that `encode` will add itself.

    llama.cpp does the same right after rendering, so /apply-template shows the shortened prompt.
    """
    bos, eos = vocab.text(vocab.special.bos), vocab.text(vocab.special.eos)
    if vocab.add_bos and bos:
        prompt = prompt.removeprefix(bos)
    if vocab.add_eos and eos:
        prompt = prompt.removesuffix(eos)
    return prompt
