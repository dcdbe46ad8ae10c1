"""WordPiece (`tokenizer.ggml.model` = "bert"): BERT and its embedding models.

Matches llama.cpp's `llm_tokenizer_wpm_session` (src/llama-vocab.cpp): text is cleaned and cut at
white space, punctuation and Chinese characters, then each word is taken apart from the left, the
longest token first; a word that cannot be taken apart wholly is the unknown token. Words begin with
"▁" in the file. BOS ([CLS]) and the separator stand around every prompt.
"""

import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from app.tokenizer.base import SPACE_MARK, Vocab
from app.tokenizer.table_tokenizer import TableTokenizer, unmarked
from app.tokenizer.words import WordMemory

# First and last code point of the characters that are words by themselves, in order.
_CHINESE: Final = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
_CHINESE_STARTS: Final = [first for first, _ in _CHINESE]
_CONTROL: Final = frozenset(("Cc", "Cf", "Co", "Cs"))
# Unicode's White_Space, which str.isspace() exceeds by four separators.
_NO_SPACE: Final = frozenset("\x1c\x1d\x1e\x1f")


@dataclass(frozen=True, slots=True)
class Normalizer:
    """What is done to characters before tokens are looked for."""

    lowercase: bool = True
    strip_accents: bool = True


class WpmTokenizer(TableTokenizer):
    """Implements `Tokenizer` for WordPiece vocabularies."""

    def __init__(self, vocab: Vocab, normalizer: Normalizer) -> None:
        super().__init__(vocab)
        self._normalizer = normalizer
        self._max_chars = max(map(len, vocab.tokens))
        self._words = WordMemory(self._encode_word)

    def _encode_plain(self, text: str, *, at_start: bool) -> list[int]:
        return self._words.encode(_words_of(text, self._normalizer))

    def _with_ends(self, ids: list[int]) -> list[int]:
        bos, sep = self._vocab.special.bos, self._vocab.special.sep
        start = [] if bos is None or ids[:1] == [bos] else [bos]
        end = [] if sep is None else [sep]
        return [*start, *ids, *end]

    def _encode_word(self, word: str) -> list[int]:
        token_of = self._vocab.ids.get
        marked = SPACE_MARK + word
        ids: list[int] = []
        start = 0
        while start < len(marked):
            for end in range(min(len(marked), start + self._max_chars), start, -1):
                token = token_of(marked[start:end])
                if token is not None:
                    ids.append(token)
                    start = end
                    break
            else:
                return self._lost(word.encode()[0])
        return ids

    def _normal_bytes(self, text: str) -> bytes:
        return unmarked(text)


def _words_of(text: str, normalizer: Normalizer) -> list[str]:
    words: list[str] = []
    word = ""
    for char in text:
        if normalizer.strip_accents:
            char = unicodedata.normalize("NFD", char)[0]
        category = unicodedata.category(char)
        if char.isspace() and char not in _NO_SPACE:
            words.append(word)
            word = ""
        elif _is_dropped(char, category, normalizer):
            continue
        else:
            char = char.lower()[0] if normalizer.lowercase else char
            if _stands_alone(char, category):
                words += [word, char]
                word = ""
            else:
                word += char
    return [word for word in [*words, word] if word]


def _is_dropped(char: str, category: str, normalizer: Normalizer) -> bool:
    if char in "\0\ufffd" or category in _CONTROL:
        return True
    return normalizer.strip_accents and category[0] == "M"


def _stands_alone(char: str, category: str) -> bool:
    if category[0] == "P" or (char < "\x7f" and category[0] == "S"):
        return True
    row = bisect_right(_CHINESE_STARTS, ord(char)) - 1
    return row >= 0 and ord(char) <= _CHINESE[row][1]
