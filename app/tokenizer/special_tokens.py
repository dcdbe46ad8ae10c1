"""Splits text at special tokens, before any tokenizer sees it.

Used by every tokenizer of this room. Matches llama.cpp's `tokenizer_st_partition`
(src/llama-vocab.cpp): longer tokens claim their places first, user-defined tokens are always found,
control and unknown tokens only with `parse_special`. A single scan finds the places; only where
places overlap, or where tokens swallow the space around them, is the order played out in full.
"""

from functools import cached_property
from typing import Final

import regex

from app.tokenizer.base import TokenType, Vocab
from app.tokenizer.vocab_loader import special_ids_of_types

# What isspace() means in the C locale, which decides what a stripping token swallows.
_C_SPACE: Final = " \t\n\v\f\r"


class SpecialSplitter:
    """Finds the special tokens of one vocabulary; any thread may use it."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._all = special_ids_of_types(vocab.types)

    def split(self, text: str, *, parse_special: bool) -> list[str | int]:
        """Return `text` as pieces of plain text (never empty) and ids of special tokens."""
        if not text:
            return []
        finder = self._with_control if parse_special else self._user_defined
        return finder.split(text) if finder is not None else [text]

    @cached_property
    def _with_control(self) -> "_Finder | None":
        return self._finder(self._all)

    @cached_property
    def _user_defined(self) -> "_Finder | None":
        user_defined = int(TokenType.USER_DEFINED)
        return self._finder([i for i in self._all if self._vocab.types[i] == user_defined])

    def _finder(self, tokens: list[int]) -> "_Finder | None":
        return _Finder(self._vocab, tokens) if tokens else None


class _Finder:
    """One set of special tokens, ready to be searched for."""

    def __init__(self, vocab: Vocab, tokens: list[int]) -> None:
        self._vocab = vocab
        self._tokens = {vocab.tokens[i]: i for i in tokens}
        self._pattern = regex.compile(r"\L<words>", words=list(self._tokens))
        self._strips = any(i in vocab.left_strip or i in vocab.right_strip for i in tokens)

    def split(self, text: str) -> list[str | int]:
        places = [match.span() for match in self._pattern.finditer(text, overlapped=True)]
        if not places:
            return [text]
        ends = [0, *(end for _, end in places)]
        if self._strips or any(start < end for (start, _), end in zip(places, ends, strict=False)):
            return self._split_in_order(text, {text[start:end] for start, end in places})
        pieces: list[str | int] = []
        done = 0
        for start, end in places:
            if start > done:
                pieces.append(text[done:start])
            pieces.append(self._tokens[text[start:end]])
            done = end
        if done < len(text):
            pieces.append(text[done:])
        return pieces

    def _split_in_order(self, text: str, longest: set[str]) -> list[str | int]:
        """Play out llama.cpp's order: each token, the longest first, over all text left so far.

        `longest` holds the longest token at each place, so that every token which occurs in the
        text is one of them or begins one of them.
        """
        present = {
            found[:n]
            for found in longest
            for n in range(1, len(found) + 1)
            if found[:n] in self._tokens
        }
        pieces: list[str | int] = [text]
        for word in sorted(
            present, key=lambda w: (-len(w.encode("utf-8", "replace")), self._tokens[w])
        ):
            pieces = [
                part
                for piece in pieces
                for part in (self._cut(piece, word) if isinstance(piece, str) else [piece])
            ]
        return pieces

    def _cut(self, text: str, word: str) -> list[str | int]:
        token = self._tokens[word]
        left, right = token in self._vocab.left_strip, token in self._vocab.right_strip
        parts: list[str | int] = []
        while True:
            before, found, after = text.partition(word)
            if not found:
                break
            before = before.rstrip(_C_SPACE) if left else before
            text = after.lstrip(_C_SPACE) if right else after
            parts += [before, token] if before else [token]
        return [*parts, text] if text else parts
