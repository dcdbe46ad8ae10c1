"""GGUF metadata → a ready tokenizer.

Called by the engine when a model is loaded. `tokenizer.ggml.model` names the algorithm, and for
byte-pair vocabularies `tokenizer.ggml.pre` the way text is cut into words. Unknown names are
refused, because a near miss would answer with a worse model and no error.
"""

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from app.errors import ModelFormatError, UnsupportedError
from app.ggml.gguf_file import Metadata
from app.tokenizer.base import SpecialIds, Tokenizer
from app.tokenizer.bpe import BpeTokenizer
from app.tokenizer.metadata_values import flag_value, text_list, text_value
from app.tokenizer.pretokenize import PreTokenizer
from app.tokenizer.pretokenize_table import DEFAULT, GEMMA4, PRE_TOKENIZERS
from app.tokenizer.spm import SpmTokenizer
from app.tokenizer.vocab_loader import VocabDefaults, load_vocab
from app.tokenizer.wpm import Normalizer, WpmTokenizer

_LOG: Final = logging.getLogger(__name__)
_MODEL_KEY: Final = "tokenizer.ggml.model"
_PRE_KEY: Final = "tokenizer.ggml.pre"
_MERGES_KEY: Final = "tokenizer.ggml.merges"


def load_tokenizer(metadata: Metadata) -> Tokenizer:
    """Return the tokenizer that the metadata describes.

    Raises:
        ModelFormatError: a key is absent or of the wrong kind.
        UnsupportedError: a tokenizer or pre-tokenizer that is not implemented.
    """
    model = text_value(metadata, _MODEL_KEY)
    if not model:
        raise ModelFormatError(f"key {_MODEL_KEY!r} is absent or empty, expected a tokenizer name")
    load = _LOADERS.get(model)
    if load is None:
        raise UnsupportedError(_unknown(_MODEL_KEY, model, _LOADERS))
    return load(metadata)


def _load_spm(metadata: Metadata) -> Tokenizer:
    defaults = VocabDefaults(
        ids=SpecialIds(bos=1, eos=2, unk=0), add_bos=True, add_space_prefix=True
    )
    return SpmTokenizer(load_vocab(metadata, defaults))


def _load_bpe(metadata: Metadata) -> Tokenizer:
    # 11 is <|endoftext|> of Falcon, the first byte-pair model that llama.cpp knew.
    return _build_bpe(metadata, _pre_tokenizer(metadata), SpecialIds(bos=11, eos=11))


def _load_gemma4(metadata: Metadata) -> Tokenizer:
    return _build_bpe(metadata, GEMMA4, SpecialIds())


def _load_wpm(metadata: Metadata) -> Tokenizer:
    ids = SpecialIds(bos=101, unk=100, sep=102, pad=0, mask=103)
    lowercase = flag_value(metadata, "tokenizer.ggml.normalizer.lowercase", True)
    accents_key = "tokenizer.ggml.normalizer.strip_accents"
    normalizer = Normalizer(lowercase, flag_value(metadata, accents_key, lowercase))
    defaults = VocabDefaults(ids=ids, add_bos=True, add_sep=True)
    return WpmTokenizer(load_vocab(metadata, defaults), normalizer)


def _build_bpe(metadata: Metadata, pre: PreTokenizer, ids: SpecialIds) -> Tokenizer:
    merges = text_list(metadata, _MERGES_KEY)
    if merges is None:
        raise ModelFormatError(f"key {_MERGES_KEY!r} is absent, expected the list of merges")
    defaults = VocabDefaults(
        ids=SpecialIds(eos=ids.eos) if pre.no_default_bos else ids,
        add_bos=pre.add_bos,
        forced_bos=pre.forced_bos,
    )
    return BpeTokenizer(load_vocab(metadata, defaults), merges, pre)


def _pre_tokenizer(metadata: Metadata) -> PreTokenizer:
    name = text_value(metadata, _PRE_KEY)
    if not name:
        _LOG.warning(
            "key %r is absent: text is cut by the default pre-tokenizer, which may not be the "
            "model's own and then makes its answers worse; a newly converted file has the key",
            _PRE_KEY,
        )
        return DEFAULT
    row = PRE_TOKENIZERS.get(name)
    if row is None:
        raise UnsupportedError(_unknown(_PRE_KEY, name, PRE_TOKENIZERS))
    return row


def _unknown(key: str, value: str, known: Mapping[str, object]) -> str:
    return f"key {key!r} is {value!r:.80}, which is not known here; known: {', '.join(known)}"


_LOADERS: Final[Mapping[str, Callable[[Metadata], Tokenizer]]] = MappingProxyType(
    {"llama": _load_spm, "gpt2": _load_bpe, "gemma4": _load_gemma4, "bert": _load_wpm}
)
