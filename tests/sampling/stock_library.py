"""Stock llama.cpp's own samplers, called in its shared library: the oracle for ours.

A StockSampler is built from the same parameters as our Sampler and given the same logits. What is
read back is the chosen token and the candidates with their probabilities, bit for bit.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from pathlib import Path

import numpy as np
import numpy.typing as npt

from app.sampling.list_kinds import TokenBias
from app.sampling.params import SamplingParams


class _TokenData(Structure):
    _fields_ = (("id", c_int32), ("logit", c_float), ("p", c_float))


class _TokenDataArray(Structure):
    _fields_ = (
        ("data", POINTER(_TokenData)),
        ("size", c_size_t),
        ("selected", c_int64),
        ("sorted", c_bool),
    )


class _Bias(Structure):
    _fields_ = (("token", c_int32), ("bias", c_float))


class _ChainParams(Structure):
    _fields_ = (("no_perf", c_bool),)


class _ModelParams(Structure):
    """llama_model_params of build 11434; only vocab_only is of interest."""

    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int32),
        ("load_mode", c_int32),
        ("lazy_mode", c_int32),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    )


_SAMPLERS: dict[str, tuple[type[c_float | c_int32 | c_uint32 | c_size_t], ...]] = {
    "dist": (c_uint32,),
    "top_k": (c_int32,),
    "top_p": (c_float, c_size_t),
    "min_p": (c_float, c_size_t),
    "typical": (c_float, c_size_t),
    "temp": (c_float,),
    "temp_ext": (c_float, c_float, c_float),
    "xtc": (c_float, c_float, c_size_t, c_uint32),
    "top_n_sigma": (c_float,),
    "mirostat": (c_int32, c_uint32, c_float, c_float, c_int32),
    "mirostat_v2": (c_uint32, c_float, c_float),
    "adaptive_p": (c_float, c_float, c_uint32),
    "penalties": (c_int32, c_int32, c_float, c_float, c_float),
}


class StockLibrary:
    """libllama with a vocabulary loaded."""

    def __init__(self, folder: Path, vocab_file: Path) -> None:
        self.lib = ctypes.CDLL(str(folder / "libllama.so"))
        self._silence = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(lambda *_: None)
        self.lib.llama_log_set(self._silence, None)
        self._declare()
        params = self.lib.llama_model_default_params()
        params.vocab_only = True
        model = self.lib.llama_model_load_from_file(str(vocab_file).encode(), params)
        assert model, f"stock llama.cpp cannot load {vocab_file}"
        self.vocab = self.lib.llama_model_get_vocab(model)

    def _declare(self) -> None:
        lib = self.lib
        lib.llama_model_default_params.restype = _ModelParams
        lib.llama_model_load_from_file.restype = c_void_p
        lib.llama_model_load_from_file.argtypes = (c_char_p, _ModelParams)
        lib.llama_model_get_vocab.restype = c_void_p
        lib.llama_model_get_vocab.argtypes = (c_void_p,)
        lib.llama_sampler_chain_init.restype = c_void_p
        lib.llama_sampler_chain_init.argtypes = (_ChainParams,)
        lib.llama_sampler_chain_add.argtypes = (c_void_p, c_void_p)
        lib.llama_sampler_apply.argtypes = (c_void_p, POINTER(_TokenDataArray))
        lib.llama_sampler_accept.argtypes = (c_void_p, c_int32)
        lib.llama_sampler_free.argtypes = (c_void_p,)
        lib.llama_sampler_init_dry.restype = c_void_p
        lib.llama_sampler_init_dry.argtypes = (
            c_void_p,
            c_float,
            c_float,
            c_int32,
            c_int32,
            POINTER(c_char_p),
            c_size_t,
        )
        lib.llama_sampler_init_logit_bias.restype = c_void_p
        lib.llama_sampler_init_logit_bias.argtypes = (c_int32, c_int32, POINTER(_Bias))
        for name, types in _SAMPLERS.items():
            function = getattr(lib, f"llama_sampler_init_{name}")
            function.restype = c_void_p
            function.argtypes = types

    def tokenize(self, text: str) -> list[int]:
        raw = text.encode()
        out = (c_int32 * (len(raw) + 8))()
        n = self.lib.llama_tokenize(
            c_void_p(self.vocab), raw, len(raw), out, len(out), c_bool(False), c_bool(False)
        )
        return list(out[:n])

    def piece(self, token: int) -> bytes:
        """The bytes of one token as the detokeniser gives them, special tokens written out."""
        ids = (c_int32 * 1)(token)
        out = ctypes.create_string_buffer(256)
        n = self.lib.llama_detokenize(
            c_void_p(self.vocab), ids, 1, out, len(out), c_bool(False), c_bool(True)
        )
        return out.raw[:n]

    def init(self, name: str, *values: float) -> int:
        made: int = getattr(self.lib, f"llama_sampler_init_{name}")(*values)
        return made

    def dry(self, p: SamplingParams) -> int:
        texts = [text.encode() for text in p.dry_sequence_breakers]
        made: int = self.lib.llama_sampler_init_dry(
            self.vocab,
            p.dry_multiplier,
            p.dry_base,
            p.dry_allowed_length,
            p.dry_penalty_last_n,
            (c_char_p * len(texts))(*texts),
            len(texts),
        )
        return made

    def logit_bias(self, n_vocab: int, biases: Sequence[TokenBias]) -> int:
        rows = [_Bias(int(bias.token), bias.bias) for bias in biases]
        made: int = self.lib.llama_sampler_init_logit_bias(
            n_vocab, len(rows), (_Bias * len(rows))(*rows)
        )
        return made

    @contextmanager
    def sampler(self, p: SamplingParams, n_vocab: int) -> Iterator["StockSampler"]:
        """A chain as common_sampler_init makes it, freed at the end."""
        chain = self.lib.llama_sampler_chain_init(_ChainParams(True))
        try:
            for link in self._links(p, n_vocab):
                self.lib.llama_sampler_chain_add(chain, link)
            yield StockSampler(self, chain)
        finally:
            self.lib.llama_sampler_free(chain)

    def _links(self, p: SamplingParams, n_vocab: int) -> Iterator[int]:
        if p.logit_bias:
            yield self.logit_bias(n_vocab, p.logit_bias)
        if p.mirostat:
            yield self.init("temp", p.temperature)
            if p.mirostat == 1:
                yield self.init("mirostat", n_vocab, p.seed, p.mirostat_tau, p.mirostat_eta, 100)
            else:
                yield self.init("mirostat_v2", p.seed, p.mirostat_tau, p.mirostat_eta)
            return
        for name in p.samplers:
            if name != "adaptive_p":
                yield self._link(name, p, n_vocab)
        if "adaptive_p" in p.samplers:
            yield self.init("adaptive_p", p.adaptive_target, p.adaptive_decay, p.seed)
        else:
            yield self.init("dist", p.seed)

    def _link(self, name: str, p: SamplingParams, n_vocab: int) -> int:
        repeats = (p.repeat_penalty, p.frequency_penalty, p.presence_penalty)
        match name:
            case "dry":
                return self.dry(p)
            case "penalties":
                return self.init(name, n_vocab, p.repeat_last_n, *repeats)
            case "top_k":
                return self.init(name, p.top_k)
            case "top_p":
                return self.init(name, p.top_p, p.min_keep)
            case "min_p":
                return self.init(name, p.min_p, p.min_keep)
            case "typ_p":
                return self.init("typical", p.typical_p, p.min_keep)
            case "top_n_sigma":
                return self.init(name, p.top_n_sigma)
            case "xtc":
                return self.init(name, p.xtc_probability, p.xtc_threshold, p.min_keep, p.seed)
            case "temperature":
                return self.init("temp_ext", p.temperature, p.dynatemp_range, p.dynatemp_exponent)
        raise AssertionError(name)


class StockSampler:
    """One chain of stock samplers."""

    def __init__(self, library: StockLibrary, chain: int) -> None:
        self._lib = library.lib
        self._chain = chain

    def sample(
        self, logits: npt.NDArray[np.float32]
    ) -> tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return (token, ids of the candidates, their probabilities) in the chain's order."""
        kind = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        rows = np.zeros(logits.size, dtype=kind)
        rows["id"] = np.arange(logits.size)
        rows["logit"] = logits
        data = rows.ctypes.data_as(POINTER(_TokenData))
        array = _TokenDataArray(data, logits.size, -1, False)
        self._lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        # XTC moves the start of the array.
        moved = ctypes.addressof(array.data.contents) - rows.ctypes.data
        left = rows[moved // kind.itemsize :][: array.size]
        return int(left["id"][array.selected]), left["id"].copy(), left["p"].copy()

    def accept(self, token: int) -> None:
        self._lib.llama_sampler_accept(self._chain, token)
