"""What makes tokenizing words fast: a bounded memory of encoded words, and safe places to cut text.

Used by `spm` and `bpe`. Nothing here changes a result: a word is remembered with the ids that its
encoding gave, and text is cut only where no merge can reach across.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from app.tokenizer.base import SPACE_MARK

_MAX_WORDS: Final = 1 << 16
_MAX_WORD_CHARS: Final = 64
# A surrogate that no decoded text holds: surrogateescape makes only U+DC80 to U+DCFF.
_BORDER: Final = "\ud800"


class WordMemory:
    """Word → ids, for words as short as most are; any thread may use it.

    Two threads may encode the same word at once and store the same ids; nothing worse can happen.
    """

    def __init__(self, encode_word: Callable[[str], list[int]]) -> None:
        self._encode_word = encode_word
        self._known: dict[str, list[int]] = {}

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the ids of the words, one after the other."""
        ids: list[int] = []
        known = self._known
        for word in words:
            found = known.get(word)
            if found is None:
                found = self._encode_word(word)
                if len(word) <= _MAX_WORD_CHARS:
                    if len(known) >= _MAX_WORDS:
                        known.clear()
                    known[word] = found
            ids += found
        return ids


def space_cutter(reached_over: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a function that cuts text, spaces already marked, into words that merge alone.

    A word starts with its space marks. `reached_over` are the characters after which some token of
    the vocabulary goes on with a space mark; there the text is left whole.
    """
    mark = SPACE_MARK
    joints = "".join(re.escape(char) for char in sorted(set(reached_over) - {mark}))
    tail = f"(?:(?<=[{joints}]){mark}+[^{mark}]*)*" if joints else ""
    return re.compile(f"{mark}*[^{mark}]+{tail}|{mark}+").findall


def chars_before_marks(texts: Iterable[str], between: str = "") -> set[str]:
    """Return every character that some text has right before `between` + a space mark."""
    pattern = f"[^{_BORDER}{SPACE_MARK}](?={between}{SPACE_MARK})"
    return set(re.findall(pattern, _BORDER.join(texts)))
