"""What all tokenizers of this room have in common: special tokens, BOS and EOS, pieces.

`spm`, `bpe` and `wpm` fill in how plain text becomes ids and what a normal token stands for.
Follows llama.cpp's `llama_vocab::impl::tokenize` and `token_to_piece` (src/llama-vocab.cpp), with
one difference on purpose: where a text already begins with BOS or ends with EOS, no second one is
added (llama.cpp adds it and warns; the model then answers worse).
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from app.tokenizer.base import SPACE_MARK, TokenType, Vocab, well_formed
from app.tokenizer.special_tokens import SpecialSplitter

_LOG: Final = logging.getLogger(__name__)
_HIDDEN: Final = (TokenType.CONTROL, TokenType.UNKNOWN)


class TableTokenizer(ABC):
    """A tokenizer over a vocabulary table; implements the `Tokenizer` protocol."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._splitter = SpecialSplitter(vocab)
        self._pieces: list[bytes | None] = [None] * vocab.n_tokens
        self._warned_of_loss = False

    @property
    def vocab(self) -> Vocab:
        """Return the vocabulary."""
        return self._vocab

    @abstractmethod
    def _encode_plain(self, text: str, *, at_start: bool) -> list[int]:
        """Return the ids of text without special tokens; `at_start`: nothing but special tokens
        stand right before it.
        """

    @abstractmethod
    def _normal_bytes(self, text: str) -> bytes:
        """Return the bytes that a normal token with this text stands for."""

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the ids of `text`; see `Tokenizer.encode`."""
        ids: list[int] = []
        at_start = True
        for part in self._splitter.split(well_formed(text), parse_special=parse_special):
            if isinstance(part, int):
                ids.append(part)
                at_start = True
            else:
                ids += self._encode_plain(part, at_start=at_start)
                at_start = False
        return self._with_ends(ids) if add_special else ids

    def piece(self, token: int, *, special: bool) -> bytes:
        """Return the bytes that a token stands for; see `Tokenizer.piece`.

        Raises: RequestError.
        """
        self._vocab.check_id(token)
        if not special and self._vocab.types[token] in _HIDDEN:
            return b""
        piece = self._pieces[token]
        if piece is None:
            piece = self._pieces[token] = self._make_piece(token)
        return piece

    def decode(self, tokens: Iterable[int], *, special: bool) -> str:
        """Return the joined pieces as text; see `Tokenizer.decode`.

        Raises: RequestError.
        """
        joined = b"".join([self.piece(token, special=special) for token in tokens])
        return joined.decode("utf-8", "replace")

    def is_eog(self, token: int) -> bool:
        """Return whether the token ends a generation."""
        return token in self._vocab.eog

    def _with_ends(self, ids: list[int]) -> list[int]:
        vocab = self._vocab
        bos, eos = vocab.special.bos, vocab.special.eos
        if vocab.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        if vocab.add_eos and eos is not None and ids[-1:] != [eos]:
            ids.append(eos)
        return ids

    def _make_piece(self, token: int) -> bytes:
        vocab = self._vocab
        match vocab.types[token]:
            case TokenType.NORMAL:
                return self._normal_bytes(vocab.tokens[token])
            case TokenType.BYTE:
                return byte_of_text(vocab.tokens[token])
            case TokenType.CONTROL | TokenType.UNKNOWN | TokenType.USER_DEFINED:
                return vocab.raw_bytes(token)
            case _:
                return b""

    def _lost(self, byte: int) -> list[int]:
        """Return what stands for a byte that no token expresses: the unknown token, or nothing."""
        unk = self._vocab.special.unk
        if unk is not None:
            return [unk]
        if not self._warned_of_loss:
            self._warned_of_loss = True
            _LOG.warning(
                "the vocabulary has no token for the byte 0x%02x and no unknown token: "
                "such bytes are dropped from prompts",
                byte,
            )
        return []


def byte_text(byte: int) -> str:
    """Return the text of the token that stands for one raw byte."""
    return f"<0x{byte:02X}>"


def byte_of_text(text: str) -> bytes:
    """Return the raw byte of a byte token; its text where that has another form."""
    try:
        return bytes([int(text[3:5], 16)])
    except ValueError:
        return text.encode("utf-8", "surrogateescape")


def unmarked(text: str) -> bytes:
    """Return a SentencePiece text as bytes with real spaces."""
    return text.replace(SPACE_MARK, " ").encode("utf-8", "surrogateescape")
