"""A process that compares our masks with those of stock llama.cpp's grammar sampler.

Called by `test_stock_masks` as `python -m tests.sampling.grammar.stock_masks FIRST END`: for each
seed from FIRST to END one line comes out, the seed and the outcome. llama.cpp's stacks grow without
bound for some grammars; an alarm then ends the process, and the caller goes on with the next seed.

What llama.cpp does with invalid UTF-8 and with control tokens is its own, so only tokens of ASCII
text and the end are compared.
"""

import ctypes
import os
import random
import resource
import signal
import sys
from ctypes import c_char_p, c_int32, c_void_p
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from app.engine.constraint import make_constraint
from app.engine.request import Grammar, GrammarKind
from app.errors import RequestError
from app.ggml.gguf_file import GGUFFile
from app.sampling.constraint import Constraint, Mask
from app.tokenizer.base import Tokenizer
from app.tokenizer.factory import load_tokenizer
from tests.helpers.assets import asset_path
from tests.sampling.grammar.random_gbnf import random_gbnf
from tests.sampling.stock_library import StockLibrary

ALPHABETS: Final = ("ab", "abc", "a b", "The ", "e r", "he", "an d", "0123", '\n"\\a', "ab!")
N_STEPS: Final = 10
ALARM_SECONDS: Final = 4
MAX_BYTES: Final = 4 * 2**30
_ROW: Final = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class _Rows(ctypes.Structure):
    """llama_token_data_array."""

    _fields_ = (
        ("data", c_void_p),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class StockGrammar:
    """One stock grammar sampler."""

    def __init__(self, library: StockLibrary, source: str, n_vocab: int) -> None:
        self._lib = library.lib
        self._lib.llama_sampler_init_grammar.restype = c_void_p
        self._lib.llama_sampler_init_grammar.argtypes = (c_void_p, c_char_p, c_char_p)
        self._lib.llama_sampler_apply.argtypes = (c_void_p, c_void_p)
        self._lib.llama_sampler_accept.argtypes = (c_void_p, c_int32)
        self._sampler = self._lib.llama_sampler_init_grammar(
            library.vocab, source.encode(), b"root"
        )
        self._rows: npt.NDArray[np.void] = np.zeros(n_vocab, dtype=_ROW)

    @property
    def refused(self) -> bool:
        return not self._sampler

    def mask(self) -> Mask:
        self._rows["id"] = np.arange(self._rows.size)
        self._rows["logit"] = 0.0
        array = _Rows(self._rows.ctypes.data, self._rows.size, -1, False)
        self._lib.llama_sampler_apply(self._sampler, ctypes.byref(array))
        mask: Mask = np.isfinite(self._rows["logit"])
        return mask

    def accept(self, token: int) -> None:
        self._lib.llama_sampler_accept(self._sampler, token)


def constraint(source: str, tokenizer: Tokenizer) -> Constraint | None:
    try:
        return make_constraint(Grammar(GrammarKind.GBNF, source), tokenizer)
    except RequestError:
        return None


def comparable(tokenizer: Tokenizer) -> Mask:
    tokens = range(tokenizer.vocab.n_tokens)
    pieces = [tokenizer.piece(token, special=False) for token in tokens]
    plain = [piece != b"" and piece.isascii() for piece in pieces]
    mask: Mask = np.array(plain) | np.array([tokenizer.is_eog(token) for token in tokens])
    return mask


def outcome(seed: int, library: StockLibrary, tokenizer: Tokenizer, compared: Mask) -> str:
    rng = random.Random(seed)
    source = random_gbnf(seed, rng.choice(ALPHABETS))
    theirs = StockGrammar(library, source, tokenizer.vocab.n_tokens)
    ours = constraint(source, tokenizer)
    if ours is None or theirs.refused:
        # They take a repetition of something that can be empty for left recursion, at times.
        return "different: only ours refuses" if not theirs.refused else "refused"
    text = b""
    for _ in range(N_STEPS):
        expected = theirs.mask() & compared
        if (expected != ours.mask() & compared).any():
            return f"different after {text!r} of {source!r}"
        tokens = [int(t) for t in np.flatnonzero(expected) if not tokenizer.is_eog(int(t))]
        if not tokens:
            break
        token = rng.choice(tokens)
        assert ours.allows(token)
        theirs.accept(token)
        ours.accept(token)
        text += tokenizer.piece(token, special=False)
    return f"same for {len(text)} bytes"


def main(first: int, end: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    vocabulary: Path = asset_path("stories260k")
    library = StockLibrary(asset_path("peer_v7") / "bin", vocabulary)
    with GGUFFile.open(vocabulary) as gguf:
        tokenizer = load_tokenizer(gguf.metadata)
    compared = comparable(tokenizer)
    for seed in range(first, end):
        signal.alarm(ALARM_SECONDS)
        line = f"{seed} {outcome(seed, library, tokenizer, compared)}\n"
        os.write(sys.stdout.fileno(), line.encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
