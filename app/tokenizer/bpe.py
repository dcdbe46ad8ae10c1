"""Byte-pair encoding (`tokenizer.ggml.model` = "gpt2", "gemma4"): GPT-2, Llama 3, Qwen, SmolLM, …

Matches llama.cpp's `llm_tokenizer_bpe_session` (src/llama-vocab.cpp): the pre-tokenizer cuts text
into words; a word's bytes are written in GPT-2's printable alphabet and merged by the rank of the
file's merge list. Raw vocabularies (Gemma 4) keep UTF-8, mark spaces with "▁" and spell what no
token covers in byte tokens; their lines are cut into words where no merge reaches across.
"""

from collections.abc import Callable
from typing import Final

from app.tokenizer.base import SPACE_MARK, Vocab
from app.tokenizer.merging import NO_RANK, merge
from app.tokenizer.pretokenize import PreTokenizer
from app.tokenizer.table_tokenizer import TableTokenizer, byte_text, unmarked
from app.tokenizer.words import WordMemory, chars_before_marks, space_cutter


def _byte_alphabet() -> str:
    """Return the 256 characters that stand for the bytes: printable Latin-1 characters for
    themselves, the others as characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))


BYTE_ALPHABET: Final = _byte_alphabet()
"""The characters that stand for the bytes 0 to 255 in token texts."""

_CHAR_OF_BYTE: Final = dict(enumerate(BYTE_ALPHABET))
_BYTE_OF_CHAR: Final = {char: byte for byte, char in enumerate(BYTE_ALPHABET)}


class BpeTokenizer(TableTokenizer):
    """Implements `Tokenizer` for vocabularies with a merge list.

    `merges` are pairs written with one space between them, the most important first.
    """

    def __init__(self, vocab: Vocab, merges: list[str], pre: PreTokenizer) -> None:
        super().__init__(vocab)
        self._pre = pre
        # Filled from the back so that the first of equal pairs keeps its rank.
        self._ranks = dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))
        self._words = WordMemory(self._encode_raw_word if pre.raw else self._encode_word)
        self._cut: Callable[[str], list[str]] | None = None
        if pre.raw:
            self._cut = space_cutter(chars_before_marks(merges, between=" "))

    def _encode_plain(self, text: str, *, at_start: bool) -> list[int]:
        if self._cut is None:
            return self._words.encode(self._pre.split(text))
        lines = self._pre.split(text.replace(" ", SPACE_MARK))
        return self._words.encode(word for line in lines for word in self._cut_line(line))

    def _cut_line(self, line: str) -> list[str]:
        if self._cut is None or line[0] == "\n":
            return [line]
        return self._cut(line)

    def _encode_word(self, word: str) -> list[int]:
        token_of = self._vocab.ids.get
        written = word.encode("utf-8").decode("latin-1").translate(_CHAR_OF_BYTE)
        if self._pre.ignore_merges and (whole := token_of(written)) is not None:
            return [whole]
        ids: list[int] = []
        for symbol in merge(list(written), self._rank):
            token = token_of(symbol)
            if token is not None:
                ids.append(token)
                continue
            for char in symbol:
                single = token_of(char)
                ids += self._lost(_BYTE_OF_CHAR[char]) if single is None else [single]
        return ids

    def _encode_raw_word(self, word: str) -> list[int]:
        token_of = self._vocab.ids.get
        if word[0] == "\n" and (whole := token_of(word)) is not None:
            return [whole]
        ids: list[int] = []
        for symbol in merge(list(word), self._rank):
            token = token_of(symbol)
            if token is not None:
                ids.append(token)
                continue
            for byte in symbol.encode("utf-8"):
                spelled = token_of(byte_text(byte))
                ids += self._lost(byte) if spelled is None else [spelled]
        return ids

    def _rank(self, left: str, right: str) -> float:
        return self._ranks.get(f"{left} {right}", NO_RANK)

    def _normal_bytes(self, text: str) -> bytes:
        if self._pre.raw:
            return unmarked(text)
        try:
            return bytes([_BYTE_OF_CHAR[char] for char in text])
        except KeyError:
            return b"".join(_byte_or_note(char, text) for char in text)


def _byte_or_note(char: str, text: str) -> bytes:
    """Return the byte of a character; for one outside the alphabet a note in llama.cpp's form."""
    if char in _BYTE_OF_CHAR:
        return bytes([_BYTE_OF_CHAR[char]])
    raw = char.encode("utf-8", "surrogateescape")
    return f"[UNK_BYTE_0x{raw.hex()}{text}]".encode("utf-8", "surrogateescape")
