"""A vocabulary for tests: its pieces are given, a text is cut greedily into the longest pieces."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.sampling.chain import Sampler, SamplerFactory
from app.sampling.params import SamplingParams, params_from_request


@dataclass(frozen=True)
class FakeVocab:
    pieces: tuple[bytes, ...]
    eog_tokens: Sequence[int] = ()
    suppress_tokens: Sequence[int] = ()

    @property
    def n_vocab(self) -> int:
        return len(self.pieces)

    def piece(self, token: int) -> bytes:
        return self.pieces[token]

    def tokenize(self, text: str) -> Sequence[int]:
        rest = text.encode()
        tokens = []
        while rest:
            fits = [t for t, piece in enumerate(self.pieces) if piece and rest.startswith(piece)]
            if not fits:
                break
            tokens.append(max(fits, key=lambda t: len(self.pieces[t])))
            rest = rest[len(self.pieces[tokens[-1]]) :]
        return tokens


def numbered(n: int) -> FakeVocab:
    """n tokens whose pieces are <0>, <1>, …"""
    return FakeVocab(tuple(b"<%d>" % i for i in range(n)), eog_tokens=(2,))


def sampler(n_vocab: int, **request: object) -> Sampler:
    """A sampler over a numbered vocabulary for a request."""
    params = params_from_request(request, SamplingParams())
    return SamplerFactory(numbered(n_vocab)).build(params)
