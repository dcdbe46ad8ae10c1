"""SentencePiece BPE (`tokenizer.ggml.model` = "llama"): Llama 2, Mistral, Gemma, Phi-3.

Matches llama.cpp's `llm_tokenizer_spm_session` (src/llama-vocab.cpp): spaces become "▁", characters
are merged towards the token with the highest score, the leftmost of equals first, and what no token
covers is spelled in byte tokens. A space is put before text that starts the prompt or follows a
special token when the vocabulary asks for it. Merging runs word by word, which gives the same ids:
a cut is made only where no token of the vocabulary reaches across (see `words`).
"""

from app.tokenizer.base import SPACE_MARK, Vocab
from app.tokenizer.merging import NO_RANK, merge
from app.tokenizer.table_tokenizer import TableTokenizer, byte_text, unmarked
from app.tokenizer.words import WordMemory, chars_before_marks, space_cutter


class SpmTokenizer(TableTokenizer):
    """Implements `Tokenizer` for SentencePiece vocabularies."""

    def __init__(self, vocab: Vocab) -> None:
        super().__init__(vocab)
        self._cut = space_cutter(chars_before_marks(vocab.tokens))
        self._words = WordMemory(self._encode_word)

    def _encode_plain(self, text: str, *, at_start: bool) -> list[int]:
        if at_start and self._vocab.add_space_prefix:
            text = " " + text
        return self._words.encode(self._cut(text.replace(" ", SPACE_MARK)))

    def _encode_word(self, word: str) -> list[int]:
        token_of = self._vocab.ids.get
        ids: list[int] = []
        for symbol in merge(list(word), self._rank):
            token = token_of(symbol)
            ids += self._spell(symbol) if token is None else [token]
        return ids

    def _rank(self, left: str, right: str) -> float:
        token = self._vocab.ids.get(left + right)
        return NO_RANK if token is None else -self._vocab.scores[token]

    def _spell(self, symbol: str) -> list[int]:
        ids: list[int] = []
        for byte in symbol.encode("utf-8"):
            token = self._vocab.ids.get(byte_text(byte))
            if token is None and byte < 0x80:
                token = self._vocab.ids.get(chr(byte))
            ids += self._lost(byte) if token is None else [token]
        return ids

    def _normal_bytes(self, text: str) -> bytes:
        return unmarked(text)
