"""Splits text at special tokens, before any tokenizer sees it.

Used by every tokenizer of this room. Matches llama.cpp's `tokenizer_st_partition`
(src/llama-vocab.cpp): longer tokens claim their places first, user-defined tokens are always found,
control and unknown tokens only with `parse_special`. A single scan finds the places; only where
places overlap, or where tokens swallow the space around them, is the order played out in full.
"""

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Final

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
    """One set of special tokens, ready to be searched for.

    A word is looked for where its first two characters stand; words with the same beginning share a
    row of lengths, so that a vocabulary with thousands of special tokens costs no more than a few.
    """

    def __init__(self, vocab: Vocab, tokens: list[int]) -> None:
        self._vocab = vocab
        self._words = {vocab.tokens[i]: i for i in tokens}
        self._strips = any(i in vocab.left_strip or i in vocab.right_strip for i in tokens)
        self._lengths = _lengths_by_beginning(self._words)
        beginnings = "|".join(map(re.escape, self._lengths))
        self._candidate = re.compile(f"(?={beginnings})")

    def split(self, text: str) -> list[str | int]:
        """Return pieces of text and ids; see `SpecialSplitter.split`."""
        places: list[tuple[int, int]] = []
        done = 0
        in_order = self._strips
        for match in self._candidate.finditer(text):
            start = match.start()
            end = self._longest_end(text, start, max(done, start))
            if end:
                in_order = in_order or start < done
                places.append((start, end))
                done = end
        if not places:
            return [text]
        if in_order:
            return self._split_in_order(text, {text[start:end] for start, end in places})
        return self._at(text, places)

    def _longest_end(self, text: str, start: int, beyond: int) -> int:
        """Return where the longest word at `start` ends; 0 when none ends after `beyond`."""
        for length in self._lengths_at(text, start):
            if start + length <= beyond:
                return 0
            if text[start : start + length] in self._words:
                return start + length
        return 0

    def _at(self, text: str, places: list[tuple[int, int]]) -> list[str | int]:
        pieces: list[str | int] = []
        done = 0
        for start, end in places:
            if start > done:
                pieces.append(text[done:start])
            pieces.append(self._words[text[start:end]])
            done = end
        return [*pieces, text[done:]] if done < len(text) else pieces

    def _split_in_order(self, text: str, longest: set[str]) -> list[str | int]:
        """Play out llama.cpp's order: each word, the longest first, over all text left so far.

        `longest` holds words such that every word which occurs in the text is in one of them.
        """
        present = {word for found in longest for word in self._words_in(found)}
        pieces: list[str | int] = [text]
        for word in sorted(
            present, key=lambda w: (-len(w.encode("utf-8", "replace")), self._words[w])
        ):
            pieces = [
                part
                for piece in pieces
                for part in (self._cut(piece, word) if isinstance(piece, str) else [piece])
            ]
        return pieces

    def _words_in(self, text: str) -> set[str]:
        starts = [match.start() for match in self._candidate.finditer(text)]
        parts = {text[i : i + n] for i in starts for n in self._lengths_at(text, i)}
        return parts & self._words.keys()

    def _lengths_at(self, text: str, start: int) -> list[int]:
        return self._lengths.get(text[start]) or self._lengths[text[start : start + 2]]

    def _cut(self, text: str, word: str) -> list[str | int]:
        token = self._words[word]
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


def _lengths_by_beginning(words: Iterable[str]) -> dict[str, list[int]]:
    """Return beginning → lengths of the words that begin so, the longest first.

    A beginning is one character where some word is no longer than that, else two.
    """
    singles = {word for word in words if len(word) == 1}
    lengths: dict[str, set[int]] = {}
    for word in words:
        beginning = word[0] if word[0] in singles else word[:2]
        lengths.setdefault(beginning, set()).add(len(word))
    return {beginning: sorted(found, reverse=True) for beginning, found in lengths.items()}
