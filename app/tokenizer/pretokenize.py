"""How a pre-tokenizer cuts text into words, before byte-pair merges run inside each word.

Used by `bpe`; the rows are in `pretokenize_table`. Each pattern in turn cuts the pieces that the
former ones left, and both what it matches and what lies between becomes a piece, as in llama.cpp's
`unicode_regex_split` (src/unicode.cpp). Patterns are compiled when first used: a server uses one
row, and compiling all of them would delay its start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import regex

Cut = Callable[[str], list[str]]
"""Text → pieces, which joined are the text; empty pieces are allowed."""


@dataclass(frozen=True, slots=True)
class Threes:
    """Cut runs of `pattern` into threes, counted from the run's right end as thousands are; what
    stands before a run stays with its first group. As a pattern this would need quadratic time.
    """

    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """One row of the table: the cuts, and what else goes with a name.

    `ignore_merges`: a word that is a token as it stands is not built from merges. `raw`: the
    vocabulary keeps UTF-8 and marks spaces, where others use GPT-2's byte alphabet. `add_bos`: BOS
    is added unless the file says otherwise; `forced_bos`: even then; `no_default_bos`: without a
    key there is no BOS token.
    """

    patterns: tuple[str | Threes, ...]
    ignore_merges: bool = False
    raw: bool = False
    add_bos: bool = False
    forced_bos: bool = False
    no_default_bos: bool = False

    def split(self, text: str) -> list[str]:
        """Return the words of `text`, none of them empty; joined they are `text`."""
        pieces = [text]
        for pattern in self.patterns:
            cut = _cut_for(pattern)
            pieces = [word for piece in pieces for word in cut(piece) if word]
        return pieces


# Sets inside sets and differences of sets need the newer syntax of the package.
_FLAGS: Final = regex.V1


@lru_cache(maxsize=64)
def _cut_for(pattern: str | Threes) -> Cut:
    if isinstance(pattern, Threes):
        return _cut_threes(pattern.pattern)
    # With one group around the whole pattern, split() returns what lies between the matches too.
    return regex.compile(f"({pattern})", _FLAGS).split


def _cut_threes(pattern: str) -> Cut:
    runs = regex.compile(f"(?:{pattern})+", _FLAGS)

    def cut(text: str) -> list[str]:
        pieces: list[str] = []
        done = 0
        for match in runs.finditer(text):
            start, end = match.span()
            for edge in range(start + ((end - start) % 3 or 3), end + 1, 3):
                pieces.append(text[done:edge])
                done = edge
        return [*pieces, text[done:]]

    return cut
