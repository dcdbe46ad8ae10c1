"""The prompt of /infill: what stands before and after a gap, with the model's tokens for that.

Follows format_prompt_infill in llama.cpp's tools/server/server-common.cpp, and through it the
repository form of Qwen2.5-Coder (arXiv 2409.12186). Prefix and suffix share a batch, three to one;
what is nearest to the gap is kept. Extra chunks fill what the context has left, the last ones kept.
"""

from dataclasses import dataclass
from typing import Final

from app.api import fields
from app.api.errors import NOT_SUPPORTED, ApiError
from app.api.json_value import Json, JsonObject
from app.api.prompt import Tokens, tokenize_mixed
from app.errors import RequestError
from app.tokenizer.base import Tokenizer, Vocab

_PROJECT: Final = "myproject\n"
_FILE: Final = "filename\n"
_NO_NAME: Final = "tmp"
_SNIPPET: Final = "\n\n--- snippet ---\n\n"
"""Between chunks of a model that has no token for that."""


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens that there is room for: in a batch, in the context, and for the answer, -1 if nobody
    knows.
    """

    n_batch: int
    n_ctx: int
    n_predict: int


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The tokens before the prefix, before the suffix and before what goes between them."""

    prefix: int
    suffix: int
    middle: int


def fim_tokens(vocab: Vocab) -> FimTokens:
    """Return the model's tokens for a gap. Raises: ApiError when it has not all of them."""
    special = vocab.special
    if special.fim_pre is None or special.fim_suf is None or special.fim_mid is None:
        found = {"prefix": special.fim_pre, "suffix": special.fim_suf, "middle": special.fim_mid}
        missing = [f"{name} token is missing." for name, token in found.items() if token is None]
        message = f"Infill is not supported by this model: {' '.join(missing)}"
        raise ApiError(NOT_SUPPORTED, message)
    return FimTokens(special.fim_pre, special.fim_suf, special.fim_mid)


def infill_prompt(
    tokenizer: Tokenizer, body: JsonObject, room: Room, *, suffix_first: bool
) -> Tokens:
    """Return the prompt of a request. Raises: RequestError, ApiError."""
    fim = fim_tokens(tokenizer.vocab)
    for name in ("input_prefix", "input_suffix"):
        if body.get(name) is None:
            raise RequestError(f"'{name}' is required", name)
    begun = _plain(tokenizer, fields.text(body, "prompt", ""), parse_special=True)
    prefix = _plain(tokenizer, body["input_prefix"], "input_prefix")
    suffix = _plain(tokenizer, body["input_suffix"], "input_suffix")
    extra = _extra(tokenizer, body)
    n_answer = min(max(room.n_predict, room.n_ctx // 4), room.n_ctx // 2)
    n_batch = min(room.n_batch, room.n_ctx - n_answer)
    n_prefix = 3 * (n_batch // 4)
    n_suffix = max(0, n_batch // 4 - (2 + len(begun)))
    n_kept_free = room.n_ctx // 4 if room.n_predict < 0 else max(2 * room.n_predict, 8)
    n_extra = max(0, room.n_ctx - n_batch - n_kept_free)
    before = (fim.prefix, *_last(prefix, n_prefix), *begun)
    after = (fim.suffix, *suffix[:n_suffix])
    first, second = (after, before) if suffix_first else (before, after)
    bos = tokenizer.vocab.special.bos
    start = (bos,) if tokenizer.vocab.add_bos and bos is not None else ()
    return (*_last(extra, n_extra), *start, *first, *second, fim.middle)


def _extra(tokenizer: Tokenizer, body: JsonObject) -> Tokens:
    """The chunks of `input_extra`, each after the name of its file."""
    special = tokenizer.vocab.special
    tokens: list[int] = []
    if special.fim_rep is not None:
        tokens += (special.fim_rep, *_plain(tokenizer, _PROJECT))
    for i, chunk in enumerate(fields.array(body, "input_extra")):
        name = f"input_extra[{i}]"
        if not isinstance(chunk, dict):
            fields.wrong_type(name, chunk, "an object")
        if not isinstance(chunk.get("text"), str):
            fields.wrong_type(f"{name}.text", chunk.get("text"), "a string")
        file_name = fields.text(chunk, "filename", _NO_NAME)
        if special.fim_sep is None:
            tokens += _plain(tokenizer, _SNIPPET)
        else:
            tokens += (special.fim_sep, *_plain(tokenizer, f"{file_name}\n"))
        tokens += _plain(tokenizer, chunk["text"])
    if special.fim_sep is not None:
        tokens += (special.fim_sep, *_plain(tokenizer, _FILE))
    return tuple(tokens)


def _plain(
    tokenizer: Tokenizer, value: Json, name: str = "", *, parse_special: bool = False
) -> Tokens:
    return tokenize_mixed(tokenizer, value, name, add_special=False, parse_special=parse_special)


def _last(tokens: Tokens, n: int) -> Tokens:
    return tokens[max(0, len(tokens) - n) :]
