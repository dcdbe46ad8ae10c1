"""GGUF metadata → `Vocab`: tokens, types, scores, special ids, end-of-generation set, flags.

Called by `factory` with the defaults of the tokenizer model. Follows llama.cpp's loader
(src/llama-vocab.cpp, `llama_vocab::impl::load`) including its repairs: a token whose text says that
it is an end or a fill-in-the-middle token is a control token whatever its type says.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.errors import ModelFormatError
from app.ggml.gguf_file import Metadata
from app.tokenizer.base import SpecialIds, TokenType, Vocab
from app.tokenizer.known_tokens import ALWAYS_SHOWN, BY_TEXT, END_OF_GENERATION
from app.tokenizer.metadata_values import (
    flag_value,
    id_list,
    id_value,
    number_list,
    text_list,
    text_value,
)

_LOG: Final = logging.getLogger(__name__)
_PREFIX: Final = "tokenizer.ggml."

# Later keys win: the last three are the older names of the fill-in-the-middle keys.
_ID_KEYS: Final = (
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("eot", "eot_token_id"),
    ("eom", "eom_token_id"),
    ("unk", "unknown_token_id"),
    ("sep", "seperator_token_id"),
    ("pad", "padding_token_id"),
    ("mask", "mask_token_id"),
    ("fim_pre", "fim_pre_token_id"),
    ("fim_suf", "fim_suf_token_id"),
    ("fim_mid", "fim_mid_token_id"),
    ("fim_pad", "fim_pad_token_id"),
    ("fim_rep", "fim_rep_token_id"),
    ("fim_sep", "fim_sep_token_id"),
    ("fim_pre", "prefix_token_id"),
    ("fim_suf", "suffix_token_id"),
    ("fim_mid", "middle_token_id"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabDefaults:
    """What a tokenizer model assumes where the file says nothing."""

    ids: SpecialIds = field(default_factory=SpecialIds)
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    add_space_prefix: bool = False
    forced_bos: bool = False


def load_vocab(metadata: Metadata, defaults: VocabDefaults) -> Vocab:
    """Return the vocabulary that the metadata describes.

    Raises: ModelFormatError.
    """
    tokens = _load_tokens(metadata)
    n_tokens = len(tokens)
    types = _load_types(metadata, n_tokens)
    scores = number_list(metadata, f"{_PREFIX}scores", n_tokens) or [0.0] * n_tokens
    ids = dict(zip(tokens, range(n_tokens), strict=True))
    if len(ids) != n_tokens:
        raise _duplicate(tokens)
    special = _find_special(metadata, defaults.ids, ids, types)
    eog = _end_of_generation(special, tokens, ids, types)
    left_strip, right_strip = _strip_rules(metadata, ids, types)
    bos_key, eos_key = f"{_PREFIX}add_bos_token", f"{_PREFIX}add_eos_token"
    add_bos = flag_value(metadata, bos_key, defaults.add_bos) or defaults.forced_bos
    add_eos = flag_value(metadata, eos_key, defaults.add_eos)
    prefix_key = f"{_PREFIX}add_space_prefix"
    return Vocab(
        tokens=tokens,
        types=types,
        scores=scores,
        ids=ids,
        special=special,
        eog=eog,
        add_bos=add_bos and _has(special.bos, bos_key),
        add_eos=add_eos and _has(special.eos, eos_key),
        add_sep=flag_value(metadata, f"{_PREFIX}add_sep_token", defaults.add_sep),
        add_space_prefix=flag_value(metadata, prefix_key, defaults.add_space_prefix),
        left_strip=left_strip,
        right_strip=right_strip,
        suppressed=_load_suppressed(metadata, n_tokens),
    )


def special_ids_of_types(types: Sequence[int]) -> list[int]:
    """Return the ids of the tokens that are found in text as a whole, before any splitting."""
    # Plain ints: comparing enum members would triple the time of a large vocabulary's start.
    wanted = {int(t) for t in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)}
    return [i for i, type_ in enumerate(types) if type_ in wanted]


def _load_tokens(metadata: Metadata) -> list[str]:
    key = f"{_PREFIX}tokens"
    tokens = text_list(metadata, key)
    if not tokens:
        raise ModelFormatError(f"key {key!r} is absent or empty, expected the list of tokens")
    if "" in tokens:
        tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
    return tokens


def _load_types(metadata: Metadata, n_tokens: int) -> list[int]:
    numbers = number_list(metadata, f"{_PREFIX}token_type", n_tokens)
    if numbers is None:
        return [int(TokenType.NORMAL)] * n_tokens
    return [int(number) for number in numbers[:n_tokens]]


def _load_suppressed(metadata: Metadata, n_tokens: int) -> tuple[int, ...]:
    """Return the tokens that the file forbids to generate; ids that no token has are left out."""
    given = id_list(metadata, f"{_PREFIX}suppress_tokens")
    return tuple(sorted({token for token in given if 0 <= token < n_tokens}))


def _duplicate(tokens: Sequence[str]) -> ModelFormatError:
    seen: dict[str, int] = {}
    for i, text in enumerate(tokens):
        if text in seen:
            return ModelFormatError(
                f"key '{_PREFIX}tokens': tokens {seen[text]} and {i} are both {text!r:.60}, "
                "expected distinct tokens"
            )
        seen[text] = i
    raise AssertionError("no duplicate in a list that has one")


def _has(token: int | None, key: str) -> bool:
    if token is None:
        _LOG.warning("%s is true but the vocabulary has no such token; none is added", key)
    return token is not None


def _find_special(
    metadata: Metadata, defaults: SpecialIds, ids: dict[str, int], types: list[int]
) -> SpecialIds:
    n_tokens = len(types)
    found = {name: i for name, i in defaults.items() if i is not None and i < n_tokens}
    for name, suffix in _ID_KEYS:
        given = id_value(metadata, _PREFIX + suffix)
        if given is None:
            continue
        if 0 <= given < n_tokens:
            found[name] = given
        else:
            _LOG.warning(
                "key '%s%s' is %d, outside the %d tokens; ignored", _PREFIX, suffix, given, n_tokens
            )
    for name, texts in BY_TEXT.items():
        if name in found:
            continue
        token = next((ids[text] for text in texts if text in ids), None)
        if token is not None:
            found[name] = token
            types[token] = TokenType.CONTROL
    return SpecialIds(**found)


def _end_of_generation(
    special: SpecialIds, tokens: Sequence[str], ids: dict[str, int], types: list[int]
) -> frozenset[int]:
    by_id = (special.fim_pad, special.fim_rep, special.fim_sep)
    eog = {token for token in by_id if token is not None}
    for text in END_OF_GENERATION:
        if text in ids:
            eog.add(ids[text])
            types[ids[text]] = TokenType.CONTROL
    for text in ALWAYS_SHOWN:
        if text in ids:
            types[ids[text]] = TokenType.USER_DEFINED
    eog.update(t for t in (special.eos, special.eot, special.eom) if t is not None)
    texts = {tokens[token] for token in eog}
    # Where replies end with <|return|> or <|call|>, <|end|> only closes one of their parts.
    calls = texts & {"<|call|>", "<|calls|>"}
    if calls and "<|end|>" in texts and texts & {"<|return|>", "<|flush|>"}:
        eog.discard(ids["<|end|>"])
        types[ids["<|end|>"]] = TokenType.USER_DEFINED
    # In these vocabularies </s> is an HTML tag.
    if "</s>" in texts and texts & {"<|tool_response>", "<|plamo:eos|>"}:
        eog.discard(ids["</s>"])
        types[ids["</s>"]] = TokenType.NORMAL
    return frozenset(eog)


def _strip_rules(
    metadata: Metadata, ids: dict[str, int], types: Sequence[int]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the tokens that swallow space on their left, and those that do on their right.

    The file format has no field for this; the models that need it are known by name.
    """
    name = text_value(metadata, "general.name").lower()
    architecture = text_value(metadata, "general.architecture")
    pre = text_value(metadata, f"{_PREFIX}pre")
    masks: tuple[str, ...] = ()
    if any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
        part in architecture for part in ("nomic-bert-moe", "jina-bert-v3")
    ):
        masks = ("<mask>",)
    elif "phi-3" in name or "phi3" in name:
        kept = {ids[text] for text in ("<unk>", "<s>", "<|endoftext|>") if text in ids}
        stripping = {*special_ids_of_types(types), *(ids[t] for t in ("</s>",) if t in ids)}
        return frozenset(), frozenset(stripping - kept)
    elif "modern-bert" in name:
        masks = ("[MASK]",)
    return frozenset(ids[text] for text in masks if text in ids), frozenset()
