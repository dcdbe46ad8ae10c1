"""A tokenizer of 26 letters and an end token, for engine tests."""

from collections.abc import Iterable

from app.tokenizer.base import SpecialIds, Vocab

EOS = 26
LETTERS = [chr(ord("a") + i) for i in range(26)]


class LetterTokenizer:
    """Token i is letter i; token 26 ends."""

    vocab = Vocab(
        tokens=[*LETTERS, "</s>"],
        types=[1] * 26 + [3],
        scores=[0.0] * 27,
        ids={text: i for i, text in enumerate([*LETTERS, "</s>"])},
        special=SpecialIds(eos=EOS),
        eog=frozenset({EOS}),
    )

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [self.vocab.ids[letter] for letter in text]

    def piece(self, token: int, *, special: bool) -> bytes:
        return b"" if token == EOS and not special else self.vocab.tokens[token].encode()

    def decode(self, tokens: Iterable[int], *, special: bool) -> str:
        return b"".join(self.piece(t, special=special) for t in tokens).decode()

    def is_eog(self, token: int) -> bool:
        return token == EOS
